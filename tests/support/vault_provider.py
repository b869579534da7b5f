"""A provider whose model opens a vault by a tool call, in a stream, if its system message tells the code."""

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.support.raw_server import Request, Write

CODE = "4711"
KEY = "sk-a-key-that-nobody-may-store"


def sse(events: Iterable[dict[str, Any]], line_end: str = "\n") -> bytes:
    """Return server-sent events with their end."""
    lines = [f"data: {json.dumps(event)}{line_end * 2}" for event in events]
    return "".join([*lines, f"data: [DONE]{line_end * 2}"]).encode()


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return one event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "small", "choices": [choice], **more}


def tool_call_events(code: str) -> list[dict[str, Any]]:
    """Return the events of a thought and a call of `enter`, whose arguments come in pieces."""
    function = {"name": "enter", "arguments": ""}
    pieces = ['{"code"', f': "{code}', '"}']
    return [
        chunk({"role": "assistant", "reasoning_content": "Secret musings."}),
        chunk({"content": "<think>More musings.</think>I en"}),
        chunk({"content": "ter it."}),
        chunk({"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": function}]}),
        *(chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces),
        chunk({}) | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        chunk({}) | {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}},
    ]


def head(content_type: str = "text/event-stream; charset=utf-8", *headers: str) -> bytes:
    """Return the head of a chunked response."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {content_type}", "transfer-encoding: chunked", *headers]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode()


def chunked(data: bytes, size: int = 37) -> Iterable[bytes]:
    """Yield a body in HTTP chunks of `size` bytes, which cut lines and characters anywhere."""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def play(request: Request, write: Write) -> None:
    """Enter the code of the system message; say so after the tool has answered."""
    messages = json.loads(request.body)["messages"]
    if messages[-1]["role"] == "tool":
        events = [chunk({"role": "assistant", "content": "I am done."})]
    else:
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        events = tool_call_events((re.findall(r"Enter (\d+)", system) or ["0000"])[0])
    write(head())
    for piece in chunked(sse(events)):
        write(piece)
