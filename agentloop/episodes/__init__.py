"""Episodes: the loop that plays one episode, and the worker that plays many."""
