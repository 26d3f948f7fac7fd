"""SWE tasks: bugs in Python packages that the packages' own tests detect."""
