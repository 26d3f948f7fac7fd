"""Checks of a model when it is loaded: a packed row must equal plain transformers on each sequence alone."""
