"""Learners: the interface through which a run trains a model, and code shared by the backends fsdp and megatron.

A learner gets batches from trainer/batch and publishes weights to engines through agentloop/weights. Both backends use
metrics, offload and checks.
"""
