"""Cells of a report's tables, and the numbers by which a reader sorts them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

_NUMBER = re.compile(r"(?:< )?([+-]?\d[\d,]*(?:\.\d+)?)(?![\w.])")
_SHARE = re.compile(r"(\d+) of (\d+) \(")
_MISSING = ("", "-")
_LONG = 60
"""Characters beyond which a text is a sentence."""


@dataclass(frozen=True)
class ReportCell:
    """Cell with its HTML and its text."""

    html: Markup
    text: str
    within: bool = False
    """True for a training seed in the rows below its arm."""

    @property
    def value(self) -> float | None:
        """The number with which the cell begins, or the share that it gives; None if it is other text, or code."""
        if self.html.startswith("<code>"):
            return None
        if share := _SHARE.match(self.text):
            return int(share[1]) / max(1, int(share[2]))
        number = _NUMBER.match(self.text)
        return float(number[1].replace(",", "")) if number else None


def kind_of(cells: Sequence[ReportCell]) -> str:
    """Return the class of a column: `n` if it holds numbers and nothing else, `long` if sentences, else empty."""
    given = [cell for cell in cells if cell.text not in _MISSING]
    if all(cell.value is not None for cell in given):
        return "n"
    return "long" if any(len(cell.text) > _LONG for cell in given) else ""
