"""The FSDP2 backend: transformers models sharded over ranks, trained by the learner or its critic.

It builds on trainer/learner and trainer/model; trainer/run/learners.py creates its learners.
"""
