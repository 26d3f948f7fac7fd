"""Episodes of several players: each model in a seat has a session of its own, and each that learns a trajectory."""
