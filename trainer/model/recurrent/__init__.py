"""Recurrent and convolution layers over packed rows: every sequence of a row begins with an empty state."""
