"""Worlds: isolated processes that run untrusted code, from their launch to the results that they send back."""
