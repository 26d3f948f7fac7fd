"""Recipe of ReTool (arXiv 2504.11536): mathematics with a code interpreter."""
