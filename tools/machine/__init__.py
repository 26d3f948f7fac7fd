"""Tools that work in the box of an episode: a shell and an editor of files."""
