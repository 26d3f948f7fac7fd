"""Engines for tests: they replay scripts."""
