"""Servers of NeMo Gym: tool servers and gymnasium servers, which run anywhere or in their own interpreter."""
