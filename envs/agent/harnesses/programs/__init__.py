"""Agents of libraries as programs. The harness copies one into the home directory of its episode and runs it there."""
