"""Outgoing connections of boxes without a network: this process makes them."""
