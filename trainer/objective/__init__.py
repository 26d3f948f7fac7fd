"""The objective: losses, corrections and KL of the trained tokens as one number; the learner minimises it."""
