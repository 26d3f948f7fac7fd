"""Self-play: a model learns games by playing against itself."""
