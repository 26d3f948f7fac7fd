"""Code that runs as the first process of a box and above it: standard library and `sandboxes.inside` only."""
