"""The language-model head and the loss, fused and in chunks."""
