"""Choose the groups that play and train next: producer, queue, group completion, failures, GPU time sharing."""
