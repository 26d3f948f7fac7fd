"""Source distributions: fetch them, separate the package from its tests, and find their requirements."""
