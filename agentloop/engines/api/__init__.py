"""Engines behind HTTP APIs. They take messages, not token ids, so they can evaluate models but not train them."""
