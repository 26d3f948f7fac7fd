"""`agentloop view`: show the files of a run in a browser. It comes after the run and only reads."""
