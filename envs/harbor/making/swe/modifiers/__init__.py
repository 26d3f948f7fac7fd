"""Modifiers: small changes of Python source that may be bugs; all text around a change stays as it is."""
