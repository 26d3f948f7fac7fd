"""Databases that a model may query: read-only, bounded, in processes that can be killed."""
