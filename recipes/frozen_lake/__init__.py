"""Recipe of gymnasium's FrozenLake with random maps."""
