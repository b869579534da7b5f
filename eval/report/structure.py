"""Reader of structured reflections: a section "Reflection" and a section "New plan" (Retroformer, Fig. 7).

The prompt of appendix E.2 ends with the word "Reflection:", so an answer may begin with that section's text.
"""

import re
from typing import NamedTuple

_TITLE = r"(?P<{name}>(?:self[- ]?)?reflections?|(?:(?:my|the|a) )?new plan)"
_DECORATION = r"[#*_>\s-]*(?:\d+[.)]\s*)?[*_]*"
_HEADING = re.compile(
    # On a line of its own as a Markdown heading or in bold, or at the start of a line or sentence before a colon.
    rf"^[>\s-]*(?:\d+[.)]\s*)?[#*_]+\s*(?:\d+[.)]\s*)?{_TITLE.format(name='line')}\s*[*_]*:?[*_]*[ \t]*$"
    rf"|(?:^|(?<=[.!?;])){_DECORATION}{_TITLE.format(name='colon')}\s*[*_]*\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"\w")


class Structure(NamedTuple):
    """Which sections a reflection has; a title without text below it is no section."""

    reflection: bool
    new_plan: bool

    @property
    def complete(self) -> bool:
        """True if it has both."""
        return self.reflection and self.new_plan


def read_structure(text: str) -> Structure:
    """Return which of the two sections a text has.

    Titles may be in any case and order, numbered, in Markdown, or in the middle of a line after a sentence. The text
    before a plan that comes first is the reflection.
    """
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    titles = {
        (heading["line"] or heading["colon"]).lower()
        for heading, end in zip(headings, ends, strict=False)
        if _WORD.search(text, heading.end(), end)
    }
    plans = any("plan" in title for title in titles)
    untitled = plans and _WORD.search(text, 0, headings[0].start()) is not None
    return Structure(untitled or any("reflection" in title for title in titles), plans)
