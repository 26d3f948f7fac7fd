"""Mixture-of-experts layers in hf engine and learner: record and replay the experts that routers choose."""
