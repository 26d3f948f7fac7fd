"""Helpers around processes: threads, worker processes, temporary folders, atomic writes, restart budgets."""
