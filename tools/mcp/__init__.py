"""Tools of MCP servers (modelcontextprotocol.io), over stdio and HTTP. `McpServer` is the entry point.

This client speaks the wire protocol itself, so it works with servers of every SDK. It does not use the package `mcp`,
whose 2.3 client also works with servers of both majors and would replace `protocol`, `stdio` and `http` by an adapter
of about a third of their length. Tried against tests/tools/mcp, these are the reasons:

- An answer that is not valid JSON-RPC ends in a log message and the call then hangs until its timeout. Here it fails at
  once with the reason. A server that dies during the handshake takes 10 seconds to report.
- Its client class exists only in 2.x. Packages that pin `mcp<2` could not be installed beside it.
- Its contexts must be entered and left by the same task, but tools open and close in different ones.
- It adds about a second of imports and a second HTTP stack, uvicorn and cryptography to a core install.
"""
