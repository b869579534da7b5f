"""Process of the judged code: it answers calls with values, and nothing else from it is trusted."""

import builtins
import random
import socket
import sys
import types
from typing import Any

from . import wire

NAME = "solution"
_FILE = "<solution>"
_REQUEST_BYTES, _REQUEST_DEPTH = 1 << 26, 2 * wire.MAXIMUM_DEPTH
_MAXIMUM_MESSAGE = 300
_MUTABLE = (list, dict, set, bytearray)


def serve(channel: socket.socket, source: str) -> None:
    """Load the code, report how that went, and answer calls until the other side closes. Raises EOFError then."""
    kept: list[object] = []

    def refer(value: object) -> int:
        kept.append(value)
        return len(kept) - 1

    module = types.ModuleType(NAME)
    # Classes look up their own module here, as dataclasses do.
    sys.modules[NAME] = module
    random.seed(0)
    try:
        exec(compile(source, _FILE, "exec"), module.__dict__)
    except BaseException as error:
        wire.send(channel, ("raised", *_describe(error)))
        return
    wire.send(channel, ("loaded",))
    while True:
        target, name, arguments, keywords = wire.receive(channel, _REQUEST_BYTES, kept.__getitem__, _REQUEST_DEPTH)
        try:
            arguments = [
                (module.__dict__.get(value.name) or getattr(builtins, value.name))
                if isinstance(value, wire.Named)
                else value
                for value in arguments
            ]
            value = _call(module if target is None else target, name, arguments, keywords)
            changed = [value if isinstance(value, _MUTABLE) else None for value in arguments]
            answer = wire.encode(("value", value, changed), refer)
        except BaseException as error:
            answer = wire.encode(("raised", *_describe(error)))
        channel.sendall(len(answer).to_bytes(4, "big") + answer)


def _call(target: Any, name: str, arguments: list[Any], keywords: dict[str, Any]) -> object:
    """Return the value of a call of the target's attribute, or of an operation on the target itself."""
    if name == wire.GET:
        return getattr(target, *arguments)
    if name == wire.SET:
        setattr(target, *arguments)
        return None
    if name == wire.CALL:
        return target(*arguments, **keywords)
    return getattr(target, name)(*arguments, **keywords)


def _describe(error: BaseException) -> tuple[str, str]:
    """Return the exception's type and text, with the last line of the judged code in its traceback."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    text = str(error.msg if isinstance(error, SyntaxError) else error)[:_MAXIMUM_MESSAGE]
    return type(error).__name__, f"{text} (line {line})" if line else text
