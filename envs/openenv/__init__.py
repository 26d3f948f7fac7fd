"""Adapter for OpenEnv servers. `OpenEnv` is the entry point."""
