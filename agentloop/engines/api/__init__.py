"""Engines behind HTTP APIs. They take messages, not token ids, so they evaluate models and cannot be trained with."""
