"""Hides passwords and API keys in text: each secret that this process knows is written as `***`.

`keep_secret` registers a value where it enters the process (a URL with a password, the variable of an API key).
`redacted` is for messages, logs and reports; it also hides credentials in any URL, known or not. `redacted_data` is
for text that a task or a model wrote, which must not change because a short password is also an ordinary word.
`guard_output` applies them to everything that a command prints and logs.
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
"""Characters. A shorter value is no secret that can be told from ordinary words; in a URL its place gives it away."""
_SHORTEST_IN_DATA = 12
"""Characters. API keys are longer; passwords such as `postgres` are also words."""

_ANY_TEXT = "surrogatepass"
"""An environment variable may hold bytes that are no text."""

_LETTERS = r"[^=&?#;\s'\"]{0,32}"
SECRET_NAME = rf"{_LETTERS}(?:key|token|secret|pass|pwd|auth|sig|cred|jwt|session|code|odbc_connect){_LETTERS}"
"""A regular expression for query parameters that hold secrets; that of ODBC holds a whole connection string."""
_PORT = r"(?!\d*(?:[/?#\s'\"]|$))"
_IN_TEXT = (
    # user:password@host. What follows `//host:` and is a port is no password.
    (
        re.compile(rf"(\b[a-z][a-z0-9+.-]{{0,30}}://[^\s/?#@:'\"]*:){_PORT}[^\s'\"]{{0,500}}@", re.IGNORECASE),
        rf"\1{HIDDEN}@",
    ),
    (re.compile(r"(\bhttps?://)[^\s/?#@:'\"]+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(rf"([?&;]{SECRET_NAME}=)[^&#\s'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
)


class _Known:
    """The secrets of this process, in every spelling that text may hold them in."""

    def __init__(self) -> None:
        self._spellings: frozenset[str] = frozenset()

    def add(self, spellings: Iterable[str]) -> None:
        self._spellings = self._spellings.union(spellings)

    def hidden_in(self, text: str, shortest: int) -> str:
        pattern = _pattern_of(self._spellings, shortest)
        return pattern.sub(HIDDEN, text) if pattern else text


@lru_cache(maxsize=4)
def _pattern_of(spellings: frozenset[str], shortest: int) -> re.Pattern[str] | None:
    """Matches those that are long enough, the longest first: one secret may begin with another."""
    long = sorted((one for one in spellings if len(one) >= shortest), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, long))) if long else None


_KNOWN = _Known()


def keep_secret(value: str, user: str | None = None) -> None:
    """Hide `value` from now on wherever this process writes; also what HTTP makes of it and its `user`."""
    plain = unquote(value)
    spellings = {value, plain, unquote_plus(value)}
    for one in (value, plain):
        # As repr and JSON write it between quotes, and as URLs do.
        spellings |= {repr(one)[1:-1], quote_plus(one, errors=_ANY_TEXT)}
        spellings |= {quote(one, safe, errors=_ANY_TEXT) for safe in ("", "/")}
    pair = f"{plain}:" if user is None else f"{unquote(user)}:{plain}"
    spellings.add(base64.b64encode(pair.encode(errors=_ANY_TEXT)).decode())
    _KNOWN.add(spellings - {HIDDEN})


def redacted(text: str) -> str:
    """A message without known secrets, and without credentials in URLs."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return _KNOWN.hidden_in(text, _SHORTEST)


def redacted_data(text: str) -> str:
    """Text of a task, a model or a user without known API keys and long passwords; everything else stays as it is."""
    return _KNOWN.hidden_in(text, _SHORTEST_IN_DATA)


def guard_output() -> None:
    """Hide secrets in all that this process prints, logs and dies with, from now on."""
    if not isinstance(sys.stderr, _Guarded):
        sys.stderr = cast(TextIO, _Guarded(sys.stderr, redacted))
        sys.stdout = cast(TextIO, _Guarded(sys.stdout, redacted_data))
        logging.setLogRecordFactory(_RedactedRecord)


class _RedactedRecord(logging.LogRecord):
    """A log record without secrets, for whichever handler: a library's own handler may hold the unguarded stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Arguments that do not fit the message are reported by the handler.
        with contextlib.suppress(TypeError, ValueError, KeyError):
            message = self.getMessage()
            if (hidden := redacted(message)) != message:
                self.msg, self.args = hidden, None
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = redacted(logging.Formatter().formatException(self.exc_info))


class _Guarded:
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
