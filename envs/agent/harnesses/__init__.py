"""Harnesses: published agent programs, one file each, which start with fresh configuration."""
