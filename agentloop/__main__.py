"""`python -m agentloop`: the command line of an interpreter whose scripts are not on PATH."""

from importlib import import_module

if __name__ == "__main__":  # processes that are spawned import this file, too
    import_module("agentloop.cli").main()
