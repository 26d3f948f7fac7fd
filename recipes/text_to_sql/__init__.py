"""Recipe of SkyRL-SQL: questions answered with a database."""
