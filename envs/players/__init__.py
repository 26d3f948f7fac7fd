"""Episodes of several players: who plays in which seat, and games in which they take turns."""
