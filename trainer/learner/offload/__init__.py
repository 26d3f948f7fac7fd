"""State that waits in host memory: the optimizer's, or a whole learner's."""
