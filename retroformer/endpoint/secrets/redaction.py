"""Hides passwords and API keys in text: each registered secret is written as `***`.

`keep_secret` registers a value where it enters the process (a URL with a password, the variable of an API key).
`redact` is for messages, logs and reports; it also hides credentials in any URL or header, registered or not.
`redact_data` is for text that a task or a model wrote, which must not change because a short password is also an
ordinary word. `guard_output` applies them to everything that a command prints and logs.
"""

import base64
import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TextIO, cast
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"
_SHORTEST = 8
"""Shortest secret to hide, in characters. A shorter one cannot be distinguished from ordinary words; in a URL its
position reveals it."""
_SHORTEST_IN_DATA = 12
"""Shortest secret to hide in data, in characters. API keys are longer; passwords such as `postgres` are also words."""

_ERRORS = "surrogatepass"
"""Error handler of encoding: an environment variable may hold bytes that are not text."""

_LETTERS = r"[^=&?#;\s'\"]{0,32}"
SECRET_NAME = rf"{_LETTERS}(?:key|token|secret|pass|pwd|auth|sig|cred|jwt|session|code|odbc_connect){_LETTERS}"
"""Regular expression for the names of query parameters that hold secrets; ODBC's holds a whole connection string."""
_PORT = r"(?!\d*(?:[/?#\s'\"]|$))"
_PATTERNS = (
    # user:password@host. A port after `//host:` is not a password.
    (
        re.compile(rf"(\b[a-z][a-z0-9+.-]{{0,30}}://[^\s/?#@:'\"]*:){_PORT}[^\s'\"]{{0,500}}@", re.IGNORECASE),
        rf"\1{HIDDEN}@",
    ),
    (re.compile(r"(\bhttps?://)[^\s/?#@:'\"]+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(rf"([?&;]{SECRET_NAME}=)[^&#\s'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    # Headers with credentials, as errors of HTTP libraries quote them, and keys in the form of many providers.
    (re.compile(r"(\b(?:Bearer\s+(?!KEY\b)|Basic\s+(?=[\w+/=]{12})))[^\s'\"`,]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\b(?:x-)?api-key['\"]?\s*[:,]\s*b?['\"]?)[^\s'\"`,]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\bsk-[\w-]{6,}"), HIDDEN),
)


@lru_cache(maxsize=4)
def _pattern_of(spellings: frozenset[str], shortest: int) -> re.Pattern[str] | None:
    """Return a pattern of the spellings that are long enough, longest first: one secret may begin with another."""
    long = sorted((spelling for spelling in spellings if len(spelling) >= shortest), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, long))) if long else None


_spellings: frozenset[str] = frozenset()
"""Registered secrets of this process, in every spelling in which they may occur in text."""


def keep_secret(value: str, user: str | None = None) -> None:
    """Hide `value` from now on in everything that this process writes, also as HTTP encodes it with its `user`."""
    global _spellings
    plain = unquote(value)
    spellings = {value, plain, unquote_plus(value)}
    for secret in (value, plain):
        # The spellings in repr and JSON strings, and in URLs.
        spellings |= {repr(secret)[1:-1], quote_plus(secret, errors=_ERRORS)}
        spellings |= {quote(secret, safe, errors=_ERRORS) for safe in ("", "/")}
    pair = f"{plain}:" if user is None else f"{unquote(user)}:{plain}"
    spellings.add(base64.b64encode(pair.encode(errors=_ERRORS)).decode())
    _spellings |= spellings - {HIDDEN}


def redact(text: str) -> str:
    """Return a message without registered secrets and without credentials in URLs and headers."""
    text = _hide(text, _SHORTEST)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_data(text: str) -> str:
    """Return the text of a task, a model or a user without registered API keys and long passwords."""
    return _hide(text, _SHORTEST_IN_DATA)


def _hide(text: str, shortest: int) -> str:
    pattern = _pattern_of(_spellings, shortest)
    return pattern.sub(HIDDEN, text) if pattern else text


def guard_output() -> None:
    """Hide secrets from now on in everything that this process prints and logs, and in its tracebacks."""
    if not isinstance(sys.stderr, _RedactingStream):
        sys.stderr = cast(TextIO, _RedactingStream(sys.stderr, redact))
        sys.stdout = cast(TextIO, _RedactingStream(sys.stdout, redact_data))
        logging.setLogRecordFactory(_RedactingRecord)


class _RedactingRecord(logging.LogRecord):
    """A log record without secrets, for any handler: a library's own handler may hold the unguarded stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The handler reports arguments that do not fit the message.
        with contextlib.suppress(TypeError, ValueError, KeyError):
            message = self.getMessage()
            if (hidden := redact(message)) != message:
                self.msg, self.args = hidden, None
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = redact(logging.Formatter().formatException(self.exc_info))


class _RedactingStream:
    """A text stream that hides secrets in each piece that is written to it."""

    def __init__(self, stream: TextIO, hide: Callable[[str], str]) -> None:
        self._stream, self._hide = stream, hide

    def write(self, text: str) -> int:
        self._stream.write(self._hide(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
