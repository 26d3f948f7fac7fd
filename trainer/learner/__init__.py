"""Learners: the interface that the run trains a model through, and the code that the backends share.

A learner gets batches from trainer/batch and publishes weights to engines through agentloop/weights. The backends
are fsdp and megatron; metrics, offload and checks serve both.
"""
