"""Servers of NeMo Gym: tool servers and gymnasium servers, running anywhere or in an interpreter of their own."""
