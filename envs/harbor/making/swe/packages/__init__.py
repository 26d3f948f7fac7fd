"""Source distributions: where they are had, what in them is the package and what its tests, and what they need."""
