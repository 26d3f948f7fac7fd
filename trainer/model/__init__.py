"""The policy as a network over packed rows: layers, adapters and activation checkpointing.

It gets micro-batches from batch and planning, and gives log-probabilities to the objective. The learner owns it.
"""
