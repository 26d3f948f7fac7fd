"""The objective that the learner minimises: loss, corrections and KL of the trained tokens."""
