"""The Python API: what `import agentloop` offers for whole runs. The command line is a thin layer above it."""
