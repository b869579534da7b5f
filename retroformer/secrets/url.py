"""A URL that never shows its credentials: as text it is `https://user:***@host/v1?api_key=***`."""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, SupportsIndex
from urllib.parse import unquote, urlsplit

from pydantic import GetCoreSchemaHandler, SerializationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from retroformer.secrets.redaction import HIDDEN, SECRET_NAME, keep_secret

WITH_SECRETS = {"secrets": "shown"}
"""Pydantic context in which `model_dump(mode="json")` keeps credentials: for a child process, never for a file."""

_pickles_secrets = ContextVar("_pickles_secrets", default=False)

_QUERY = re.compile(rf"(?P<name>[?&;]{SECRET_NAME}=)(?P<secret>[^&]+)", re.IGNORECASE)
_PORT = re.compile(r"\d*$")


class SecretUrl(str):
    """URL that shows no credentials in any use as text; only `secret_url()` returns the whole URL.

    Two URLs that differ only in their credentials are equal: credentials are not a condition of an experiment.
    """

    __slots__ = ("_whole",)
    _whole: str

    def __new__(cls, url: str) -> Self:
        if isinstance(url, cls):
            return url
        for user, secret in _secrets(url):
            keep_secret(secret, user)
        shown = super().__new__(cls, _shown(url))
        shown._whole = url
        return shown

    def secret_url(self) -> str:
        """Return the URL with its credentials, for connecting; it must not be written anywhere."""
        return self._whole

    def split_user(self) -> tuple[str, dict[str, str]]:
        """Return the web address without user and password, and the HTTP header that carries them instead."""
        address = urlsplit(self._whole)
        user, at, host = address.netloc.rpartition("@")
        if not at:
            return self._whole, {}
        basic = base64.b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
        return address._replace(netloc=host).geturl(), {"Authorization": f"Basic {basic}"}

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[str], tuple[str]]:
        return (SecretUrl, (self._whole,)) if _pickles_secrets.get() else (str, (str(self),))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            cls._validated,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True),
        )

    @classmethod
    def _validated(cls, value: Any, as_text: core_schema.ValidatorFunctionWrapHandler) -> "SecretUrl":
        if isinstance(value, SecretUrl):
            return value
        url = cls(as_text(value))
        if any(secret == HIDDEN for _, secret in _secrets(url.secret_url())):
            raise PydanticCustomError(
                "secret_url", f"Its password or key is left out: write it in place of {HIDDEN}, or take it away"
            )
        return url


@contextmanager
def pickled_with_secrets() -> Iterator[None]:
    """Keep the credentials of URLs that are pickled in this block: for a process of our own, never for a file."""
    token = _pickles_secrets.set(True)
    try:
        yield
    finally:
        _pickles_secrets.reset(token)


def _dumped(url: str, info: SerializationInfo) -> str:
    """Return the object itself in Python mode, as it can still connect, and its redacted text in JSON mode."""
    if info.mode != "json":
        return url
    if info.context == WITH_SECRETS and isinstance(url, SecretUrl):
        return url.secret_url()
    return str(url)


def _parts(url: str) -> tuple[str, str, str | None, str]:
    """Split a URL into scheme with slashes, user, password (None if there is none), and the rest after their `@`.

    In a web address the credentials end within the authority, unless the password holds an unquoted slash; in a
    database's address SQLAlchemy takes everything up to the first `@`. In doubt, more text counts as password.
    """
    scheme, slashes, rest = url.partition("://") if "://" in url else ("", "", url)
    start = scheme + slashes
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, colon, after = authority.partition(":")
    if "@" in authority:
        end = rest.rindex("@", 0, len(authority))
    elif colon and "@" in rest and (not scheme.lower().startswith("http") or not _PORT.match(after)):
        end = rest.index("@")
    else:
        return start, "", None, rest
    user, colon, password = rest[:end].partition(":")
    return start, user, password if colon else None, rest[end + 1 :]


def _secrets(url: str) -> Iterator[tuple[str | None, str]]:
    """Yield the secrets of a URL, each with its user if it is a password."""
    start, user, password, rest = _parts(url)
    if password:
        yield user, password
    elif user and start.lower().startswith("http"):
        yield None, user  # In a web address, a user without a password is a key.
    for match in _QUERY.finditer(rest):
        yield None, match["secret"]


def _shown(url: str) -> str:
    start, user, password, rest = _parts(url)
    credentials = ""
    if password:
        credentials = f"{user}:{HIDDEN}@"
    elif user and start.lower().startswith("http"):
        credentials = f"{HIDDEN}@"
    elif user or password is not None:
        credentials = f"{user}@" if password is None else f"{user}:@"
    return start + credentials + _QUERY.sub(rf"\g<name>{HIDDEN}", rest)
