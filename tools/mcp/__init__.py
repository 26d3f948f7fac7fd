"""Tools of MCP servers (modelcontextprotocol.io), over stdio and HTTP. `McpServer` is the entry point.

This client speaks the wire protocol itself, so it works with servers of every SDK. It does not use the package `mcp`,
whose 2.3 client also works with servers of both major versions. With it an adapter of about a third of the length could
replace `protocol`, `stdio` and `http`. Tests with tests/tools/mcp gave these reasons against it:

- If an answer is not valid JSON-RPC, it logs a message, and the call hangs until its timeout. Here the call fails at
  once with the reason. It reports the death of a server during the handshake only after 10 seconds.
- Its client class exists only in 2.x, so packages that pin `mcp<2` could not be installed beside it.
- The same task must enter and leave its contexts, but tools open and close in different tasks.
- It adds about a second of imports, and a second HTTP stack, uvicorn and cryptography to a core install.
"""
