"""An MCP server with the official SDK, 1.x or 2.x, run in a virtual environment of its own.

python servers.py stdio | http PORT
"""

import base64
import os
import sys

try:
    from mcp.server.mcpserver import MCPServer as Server  # 2.x
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server  # 1.x

try:
    from mcp_types import ImageContent, TextContent
except ImportError:
    from mcp.types import ImageContent, TextContent

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
assert base64.b64decode(PIXEL)

settings = {"host": "127.0.0.1", "port": int(sys.argv[2])} if sys.argv[1] == "http" else {}
try:
    server = Server("tests", **settings)
except TypeError:  # 2.x takes them when it runs
    server = Server("tests")
counter = {"value": 0}


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count() -> str:
    """Return the number of calls of this process."""
    counter["value"] += 1
    return f"{counter['value']} in {os.getpid()}"


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
async def wait(seconds: float) -> str:
    """Takes its time."""
    import asyncio

    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def image() -> list:
    """Return a text and an image."""
    try:
        part = ImageContent(type="image", data=PIXEL, mimeType="image/png")
    except Exception:
        part = ImageContent(type="image", data=PIXEL, mime_type="image/png")
    return [TextContent(type="text", text="a pixel"), part]


@server.tool()
def secrets() -> str:
    """Return the environment variables that the server sees."""
    return ",".join(sorted(name for name in os.environ if "SECRET" in name))


@server.tool()
def die() -> str:
    """Ends the server."""
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(transport="stdio")
    else:
        try:
            server.run(transport="streamable-http", **settings)
        except TypeError:
            server.run(transport="streamable-http")
