"""Worlds: processes in which untrusted code runs, from their launch to the results that they stream back."""
