"""Style and script within a file that opens without a server, and the policy that lets the browser run only them."""

import base64
import hashlib
from typing import NamedTuple

from .rendering import FOLDER


class Inline(NamedTuple):
    """Style and script of a file, and its content security policy."""

    style: str
    script: str
    policy: str


def inline(*scripts: str) -> Inline:
    """Return the site's style, and these of its scripts. The policy names them by their hashes and loads nothing."""
    style = _static("figures.css") + _static("style.css")
    script = "".join(map(_static, scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Inline(style, script, policy)


def _static(name: str) -> str:
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return the hash of an inline style or script, as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
