"""The web, for models: pages as text, fetched so that nothing inside of the own network can be reached."""
