"""The Python API for whole runs, which `import agentloop` exports. The command line is a thin layer above it."""
