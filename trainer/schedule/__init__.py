"""What plays next and what trains next: producer, queue, group completion, evaluation."""
