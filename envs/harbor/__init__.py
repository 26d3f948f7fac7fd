"""Harbor tasks: an instruction, a box to work in, and tests that write the reward."""
