"""Named objects and their options: the registry, strict option schemas, and loading of objects that a config names."""
