"""`agentloop view`: shows the files of a run in a browser; read-only."""
