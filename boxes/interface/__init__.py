"""The interface of boxes: what a box is made from, what it can do, and what a provider of boxes must offer."""
