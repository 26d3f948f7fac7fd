"""Web search and page fetching for models, restricted to the public internet."""
