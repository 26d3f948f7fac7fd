"""Adapter for gymnasium environments. `GymnasiumEnv` is the entry point."""
