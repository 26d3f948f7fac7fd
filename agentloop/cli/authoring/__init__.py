"""Commands for authors: list and try tools, environments and rewards, and create packages of them."""
