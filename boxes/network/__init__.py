"""Ways out of a box that has no network: connections that this process makes for it."""
