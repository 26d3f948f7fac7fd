"""Tools that search a corpus: an index on disk (SQLite, tantivy) or a retrieval server.

`agentloop tools index` writes the indexes.
"""
