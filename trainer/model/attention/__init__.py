"""Attention over packed rows, and the choice of its kernel."""
