"""Runs a module of FastChat, unmodified but for what pydantic 2 breaks: its streams.

Two response classes of its OpenAI API server, ChatCompletionStreamResponse and CompletionStreamResponse, get the
`json()` of pydantic 1 back, which the server calls; in pydantic 2 that raises TypeError after the first headers.

Usage: python -m serve.fastchat_on_pydantic2 MODULE [ARGUMENT ...]. Further arguments, such as keys, are a JSON list in
the first line of standard input. The process ends when the input closes.
"""

import json
import logging
import runpy
import sys
from typing import Any

from fastchat.protocol.openai_api_protocol import ChatCompletionStreamResponse, CompletionStreamResponse

from .supervisor import read_first_line


def _json_as_in_pydantic_1(
    response: Any, *, exclude_unset: bool = False, exclude_none: bool = False, ensure_ascii: bool = True
) -> str:
    content = response.model_dump(mode="json", exclude_unset=exclude_unset, exclude_none=exclude_none)
    return json.dumps(content, ensure_ascii=ensure_ascii)


if __name__ == "__main__":
    # FastChat logs its arguments, which hold the keys, and every request.
    logging.disable(logging.INFO)
    streamed: tuple[Any, ...] = (ChatCompletionStreamResponse, CompletionStreamResponse)
    for response_class in streamed:
        response_class.json = _json_as_in_pydantic_1
    del sys.argv[0]
    sys.argv += json.loads(read_first_line() or "[]")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
