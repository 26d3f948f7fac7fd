"""`agentloop demo`: the command, its progress, its plot and its report."""
