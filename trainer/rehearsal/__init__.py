"""What `agentloop train --dry-run` does: everything that a run needs is tried once, without weights."""
