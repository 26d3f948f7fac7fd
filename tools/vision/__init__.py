"""Tools that look at pictures."""
