"""Isolation from the inside: mounts, namespaces, Landlock, confinement of steps, and cleanup after them."""
