"""Datasets: files and functions to checked rows, with their images. `agentloop.envs.sampler` draws from them."""
