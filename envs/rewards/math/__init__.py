"""Rewards of mathematical answers, compared by math-verify in a process of its own."""
