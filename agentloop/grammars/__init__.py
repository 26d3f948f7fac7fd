"""Grammars of constrained turns as masks of allowed tokens: engines and the learner compute the same ones."""
