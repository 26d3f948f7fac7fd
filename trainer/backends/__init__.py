"""Backends of the learner; each is imported when it is used."""
