"""Tools that show the model parts of images."""
