"""Commands for authors: list and try tools, environments and rewards, and write new packages of them."""
