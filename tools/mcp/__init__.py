"""Tools of MCP servers (modelcontextprotocol.io). Speaks the wire protocol: servers of every SDK understand it."""
