"""Episodes of several players: the player of each seat, and games in which they take turns."""
