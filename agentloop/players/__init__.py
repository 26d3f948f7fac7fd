"""Episodes of several players: each model has its own session, and each model that learns a trajectory."""
