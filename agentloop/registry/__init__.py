"""Named things and their options: strict options, registries, and objects that a config names."""
