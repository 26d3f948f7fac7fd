"""The interface of boxes: the specification of a box, its operations, and those of a provider."""
