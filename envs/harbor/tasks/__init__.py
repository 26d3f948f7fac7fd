"""Read Harbor task folders: task.toml, instructions, and the files that boxes get."""
