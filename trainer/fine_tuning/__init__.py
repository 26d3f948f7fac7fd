"""Training on given answers (conversations or preference pairs), with the same steps and folders as other runs."""
