"""Schedule the groups to play and to train: producer, queue, group completion, failures, GPU time sharing."""
