"""A URL that never shows its credentials: as text it is `https://user:***@host/v1?api_key=***`."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from pydantic import AfterValidator, GetCoreSchemaHandler, Secret
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from retroformer.endpoint.secrets.redaction import HIDDEN, SECRET_NAME, keep_secret

_QUERY = re.compile(rf"(?P<name>[?&;]{SECRET_NAME}=)(?P<secret>[^&]+)", re.IGNORECASE)
_HTTP = re.compile(r"https?://.", re.IGNORECASE)
_PORT = re.compile(r"\d*$")


class SecretUrl(Secret[str]):
    """URL that shows no credentials as text and in JSON; only `secret_url()` returns the whole URL.

    Two URLs that differ only in their credentials are equal: credentials are not a condition of an experiment.
    """

    def __init__(self, url: "str | SecretUrl") -> None:
        super().__init__(url if isinstance(url, str) else url.secret_url())
        for user, secret in _secrets(self.secret_url()):
            keep_secret(secret, user)

    def secret_url(self) -> str:
        """Return the URL with its credentials, for connecting; it must not be written anywhere."""
        return self.get_secret_value()

    def split_user(self) -> tuple[str, dict[str, str]]:
        """Return the web address without user and password, and the HTTP header that carries them instead."""
        address = urlsplit(self.secret_url())
        user, at, host = address.netloc.rpartition("@")
        if not at:
            return self.secret_url(), {}
        basic = base64.b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
        return address._replace(netloc=host).geturl(), {"Authorization": f"Basic {basic}"}

    def _display(self) -> str:
        return _hide_credentials(self.secret_url())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl | str) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls._require_credentials, super().__get_pydantic_core_schema__(source, handler)
        )

    def _require_credentials(self) -> "SecretUrl":
        """Return this URL. Raises PydanticCustomError if it was copied from a text that hides its credentials."""
        if any(secret == HIDDEN for _, secret in _secrets(self.secret_url())):
            raise PydanticCustomError(
                "secret_url", f"Its password or key is left out: write it in place of {HIDDEN}, or take it away"
            )
        return self


def _require_http(url: SecretUrl) -> SecretUrl:
    address = url.secret_url()
    if not _HTTP.match(address):
        raise PydanticCustomError("address", "It must begin with http:// or https://")
    with suppress(ValueError):
        if address.isprintable() and (urlsplit(address).port or True):
            return url
    # The message does not show the fault, which may be part of a password.
    raise PydanticCustomError(
        "address",
        "It is not an address: write it as in http://127.0.0.1:8000/v1, and special characters of a password as %40, "
        "%2F and so on",
    )


HttpUrl = Annotated[SecretUrl, AfterValidator(_require_http)]
"""URL of a server that is asked by HTTP."""


def sqlite_url(path: Path) -> SecretUrl:
    """Return the address of an SQLite file, whose name may hold marks of URLs."""
    return SecretUrl(f"sqlite:///{str(path).translate({ord(mark): quote(mark) for mark in '%?#'})}")


def json_with_secrets(value: object) -> str:
    """Return a value as JSON with the credentials of its URLs: for a child process, never for a file."""
    return json.dumps(value, default=lambda part: part.secret_url() if isinstance(part, SecretUrl) else str(part))


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


def _hide_credentials(url: str) -> str:
    start, user, password, rest = _parts(url)
    credentials = ""
    if password:
        credentials = f"{user}:{HIDDEN}@"
    elif user and start.lower().startswith("http"):
        credentials = f"{HIDDEN}@"
    elif user or password is not None:
        credentials = f"{user}@" if password is None else f"{user}:@"
    return start + credentials + _QUERY.sub(rf"\g<name>{HIDDEN}", rest)
