"""Helpers around processes: threads, worker processes, temporary folders, locks, atomic writes, restart budgets."""
