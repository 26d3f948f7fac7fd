"""The interface of sandboxes: `Sandbox`, `Session` and their data. Levels and the remote client implement it."""
