"""Training on given answers, conversations or preference pairs, with the steps and folders of all runs."""
