"""Terminal tasks: a model works with a shell in a box, and the tests of the task judge the files that it leaves."""
