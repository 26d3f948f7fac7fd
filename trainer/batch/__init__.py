"""From finished groups to training data: samples with advantages, and the trained tokens of each micro-batch.

It comes after advantages; planning and the learner come after it.
"""
