"""Episodes: the loop that plays one, the worker that plays many, and what they are made of."""
