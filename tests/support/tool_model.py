"""Messages of a model that calls tools, for scripted endpoints."""

import json
from typing import Any

from tests.support.endpoint import Body


def called(*calls: tuple[str, Any], text: str | None = None) -> Body:
    """Return an assistant's message with these calls: names and arguments, which may be any text in place of JSON."""
    requested = [
        {
            "id": f"id-{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": requested}


def tool_results(body: Body) -> list[str]:
    """Return the answers of tools that a request holds."""
    return [turn["content"] for turn in body["messages"] if turn["role"] == "tool"]
