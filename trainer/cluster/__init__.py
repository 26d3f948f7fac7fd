"""Ray: sessions, GPU reservations and learner ranks, on which workers and learners build."""
