"""Games of TextArena for one and several players, in an interpreter that has the package."""
