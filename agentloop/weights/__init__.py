"""Transfer of weights from a learner to engines: one handle type, and one file per transport."""
