"""Templates of the site. All text is escaped, and characters that deceive a reader are written as escapes."""

import base64
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from retroformer.files.text import visible

from ..measure.statistics import MeanInterval

FOLDER = Path(__file__).parent
Link = Callable[..., str]
"""Function that returns the address of a page, given its path and query; empty if the page is not shown."""


def _finalize(value: Any) -> Any:
    """Return what a template prints for a value: text with its deceiving characters as escapes, nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else visible(str(value))


_NOTHING, _MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def link(path: str, **query: Any) -> str:
    """Return a URL within the site; query values that are empty are left out."""
    chosen = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def link_to(text: Any, address: str, **attributes: str) -> Markup:
    """Return text as a link with these attributes; where there is no address, the text alone.

    An underscore in the name of an attribute stands for a hyphen.
    """
    shown = escape(_finalize(text))
    if not address:
        return shown
    all_attributes = {name.replace("_", "-"): value for name, value in attributes.items() if value} | {"href": address}
    pairs = Markup("").join(Markup(' {}="{}"').format(name, visible(value)) for name, value in all_attributes.items())
    return Markup("<a{}>{}</a>").format(pairs, shown)


def number(value: float | None, *, signed: bool = False) -> str:
    """Return a return or a rating with three digits; a dash if there is none."""
    if value is None:
        return _NOTHING
    text = f"{value:+.3g}" if signed and value else f"{value:.3g}"
    return text.replace("-", _MINUS)


def percent(part: float, total: float) -> str:
    """Return a share in percent; a dash if the total is 0."""
    return f"{100 * part / total:.0f}%" if total else _NOTHING


def interval(value: MeanInterval) -> Markup:
    """Return a difference with its 95% interval as in a report, which does not wrap."""
    return Markup('<span class="interval">{}</span>').format(value)


def _sign(value: float | None) -> str:
    """Return the class of a rating: gain, loss or same."""
    return "none" if value is None else "gain" if value > 0 else "loss" if value < 0 else "same"


def _lines(text: str) -> Markup:
    """Return text with its line breaks."""
    return Markup("<br>").join(escape(visible(line)) for line in text.split("\n"))


def templates(address: Link = link) -> Environment:
    """Return the environment of the templates, whose pages link to one another by these addresses."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": partial(number, signed=True),
        "sign": _sign,
        "lines": _lines,
        "thousands": "{:,}".format,
        "interval": interval,
    }
    environment.globals.update(link=address, link_to=link_to, percent=percent)
    return environment


def inline(*scripts: str) -> dict[str, str]:
    """Return `style`, these scripts as `script`, and a content security `policy` that allows nothing else."""
    style = _static("figures.css") + _static("style.css")
    script = "".join(map(_static, scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": style, "script": script, "policy": policy}


def _static(name: str) -> str:
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return the hash of an inline style or script, as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
