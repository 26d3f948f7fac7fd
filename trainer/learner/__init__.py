"""Learners: what the run loop asks of them, and what all backends share. Backends are in fsdp and megatron."""
