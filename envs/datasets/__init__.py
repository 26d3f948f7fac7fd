"""Datasets: convert files and functions to checked rows with images, from which `agentloop.envs.sampler` draws."""
