"""Recipe of the demo: a model of a million parameters, from which the tiny runs of other recipes start."""
