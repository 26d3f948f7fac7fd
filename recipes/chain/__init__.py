"""Two programs in a row, by a model of ninety million parameters, on one GPU."""
