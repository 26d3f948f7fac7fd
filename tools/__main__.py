"""Make `python -m agentloop.tools` the same as `agentloop tools`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    # Import by name, because tools must not depend on the command line, which is built on top of them.
    import_module("agentloop.cli").main(["tools", *sys.argv[1:]])
