"""Make Harbor tasks of Python packages: a bug is put into the source, and the tests of the package find it."""
