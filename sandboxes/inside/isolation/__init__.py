"""Code that shuts the doors from the inside: mounts, Landlock, namespaces, and the clean-up between executions."""
