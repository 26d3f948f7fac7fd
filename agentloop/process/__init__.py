"""What a process needs from its host: threads, worker processes, temporary folders, atomic writes, restarts."""
