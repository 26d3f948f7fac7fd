"""Which GPUs the learner and the engines of a run get."""
