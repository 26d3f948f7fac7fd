"""Recipe of questions that need two programs, for a model of ninety million parameters on one GPU."""
