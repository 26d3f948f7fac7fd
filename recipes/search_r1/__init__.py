"""Recipe of Search-R1 (arXiv 2503.09516): questions answered with a search tool."""
