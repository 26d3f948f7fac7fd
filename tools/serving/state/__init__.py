"""State of the daemon, shared by all routes: its settings, sandbox, leases, tools and metrics. Routes build on it."""
