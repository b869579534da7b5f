"""An MCP server with a vault, on standard input and output, or over HTTP: `python vault_server.py [http]`.

It imports nothing of this project, as servers of users do.
"""

import os
import sys
import time
from typing import Any

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import ImageContent

server = FastMCP("vault", log_level="ERROR")
opened = list[str]()


@server.tool()
def enter(code: str) -> str:
    """Enter a code at the vault."""
    opened.append(code)
    return f"You have entered {len(opened)} codes. A note says 4711."


@server.tool()
def picture() -> ImageContent:
    """Look at the vault."""
    return ImageContent(type="image", data="aGVsbG8=", mimeType="image/png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("the handle is stuck")


@server.tool()
def crash() -> str:
    """End the server."""
    sys.stderr.write("out of power\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def chatter() -> str:
    """Write much to standard error, then end the server."""
    for _ in range(64):
        sys.stderr.write("chatter " * (1 << 18) + "\n")
    return crash()


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(10**6)
    return ""


@server.tool()
def say(length: int) -> str:
    """Say a lot."""
    return "x" * length


@server.tool()
async def find_lever(context: Context[Any, Any, Any]) -> str:
    """Find a new tool."""
    server.add_tool(lambda: "It moves.", name="pull", description="Pull the lever.")
    await context.session.send_tool_list_changed()
    return "There is a lever."


@server.tool()
def grade(task: dict[str, Any], answer: str) -> float:
    """Rate an attempt."""
    if answer == "cheat":
        raise ValueError("no cheating")
    return float(opened[-1:] == [task["code"]])


def main() -> None:
    if sys.argv[1:] != ["http"]:
        server.run()
        return
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
