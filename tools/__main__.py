"""`python -m agentloop.tools` is `agentloop tools`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    # By name: the command line is above the tools, which import nothing of it.
    import_module("agentloop.cli").main(["tools", *sys.argv[1:]])
