"""Ray: sessions, GPU reservations and learner ranks. Workers and learners come after it, configuration before."""
