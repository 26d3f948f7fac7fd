"""Adapter that makes sessions with OpenEnv servers environments of agentloop. `OpenEnv` is the entry point."""
