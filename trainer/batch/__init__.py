"""From finished groups to training data: samples with advantages, and the trained tokens of each micro-batch.

It uses advantages; planning and the learner use it.
"""
