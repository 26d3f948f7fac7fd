"""`agentloop view`: look at what a run left, in a browser."""
