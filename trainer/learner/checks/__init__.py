"""The check of a model when it is loaded: a packed row must equal plain transformers on each sequence alone.

It probes the rows of trainer/learner/micro_batch.py; trainer/learner/fsdp runs it before a model is sharded.
"""
