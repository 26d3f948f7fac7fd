"""Find passages: in an index on disk, on a retrieval server, on the web."""
