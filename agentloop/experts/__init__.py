"""Mixture-of-experts layers, for the hf engine and the learner: which experts a router chooses, and replay of them."""
