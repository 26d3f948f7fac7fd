"""Make Harbor tasks of Python packages: insert a bug that the tests of the package detect."""
