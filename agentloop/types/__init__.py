"""The data that travels: messages, trajectories, limits and their files. Imports nothing above it."""
