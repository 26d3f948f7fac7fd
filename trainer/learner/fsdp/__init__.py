"""The FSDP2 backend: learner, critic, state, and memory that is offloaded to the host."""
