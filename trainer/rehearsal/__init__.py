"""The implementation of `agentloop train --dry-run`: try everything that a run needs once, without weights."""
