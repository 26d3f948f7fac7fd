"""From finished groups to training data: samples with their advantages, and the trained tokens of a micro-batch."""
