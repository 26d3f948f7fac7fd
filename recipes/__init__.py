"""Recipes: configs, tasks and rewards of reproduced papers and of small examples, one folder each."""
