"""Adapter that makes gymnasium environments environments of agentloop. `GymnasiumEnv` is the entry point."""
