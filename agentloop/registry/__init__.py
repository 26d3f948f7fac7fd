"""Named things and their options: the registry, strict options, objects that a config names; below every other room."""
