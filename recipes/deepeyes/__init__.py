"""Recipe of DeepEyes (arXiv 2505.14362): zooming into images."""
