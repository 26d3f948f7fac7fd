"""`agentloop tools serve`: the sandboxes and the tools behind HTTP."""
