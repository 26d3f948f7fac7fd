"""OpenEnv servers as environments of agentloop."""
