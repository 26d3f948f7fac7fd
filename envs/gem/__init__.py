"""Games and questions of GEM, in an interpreter that has the package."""
