"""Rewards of mathematical answers: equivalence by math-verify, which runs in its own process, and ReTool's reward."""
