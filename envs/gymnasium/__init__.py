"""gymnasium environments as environments of agentloop."""
