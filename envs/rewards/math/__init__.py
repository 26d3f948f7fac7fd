"""Rewards of mathematical answers: equivalence by math-verify, in a separate process, and ReTool's reward."""
