"""`agentloop tools serve`: sandboxes and tools over HTTP. `lifecycle` and `app` build on routes, state and http."""
