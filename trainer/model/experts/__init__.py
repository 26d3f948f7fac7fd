"""Mixture-of-experts layers of the learner: replayed routing, and how the experts are loaded."""
