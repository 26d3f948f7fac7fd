"""Make Harbor tasks from seeds."""
