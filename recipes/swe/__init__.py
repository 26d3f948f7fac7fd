"""SWE tasks: bugs of Python packages, which the packages' own tests notice."""
