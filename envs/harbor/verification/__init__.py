"""Run the tests of a task in a box, and read the reward that they write."""
