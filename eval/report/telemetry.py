"""Chapter on the form of all reflections, for each arm and model and in every environment.

A structured reflection has a section "Reflection" and a section "New plan" (Retroformer, Fig. 7). The prompt of
appendix E.2 ends with the word "Reflection:", so an answer may begin with that section's text.
"""

import re
from collections import Counter
from collections.abc import Iterator

from retroformer.environments.extras import TaskFacts
from retroformer.files import document as doc
from retroformer.method.records import Reflection, Trajectory
from retroformer.method.repetition import COPIED_WORDS, RESTATEMENT_SHARE, DistinctCounter, copied_share, text_before

from .report_input import ReportInput

_NOTE = (
    "Blank reflections are left out. ",
    doc.emphasis("Distinct-1"),
    " and ",
    doc.emphasis("distinct-2"),
    " are shares of distinct words and word pairs in all reflections of the row; they fall with the amount of text. ",
    doc.emphasis("Copied"),
    f" is the mean share of sequences of {COPIED_WORDS} words that are also in the last message of the reflector's "
    "prompt, or in the attempt if there was no prompt; a reflection restates if that share is at least "
    f"{RESTATEMENT_SHARE:.0%}. A structured reflection has both sections of Retroformer's Fig. 7.",
)

_HEADING = re.compile(
    # At the start of a line or sentence, perhaps numbered or in Markdown, before a colon or the end of the line.
    r"(?:^|(?<=[.!?;]))[\W\d_]*((?:self[- ]?)?reflections?|(?:my |the |a )?new plan)[ \t*_]*(?::[*_]*|$)",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"\w")


class AdviceTelemetry:
    """Chapter on the form of the reflections of every arm, by training seed."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._names = {seed.stored: seed.name for arm in evaluation.results for seed in arm.seeds}
        self._models = {stored: set[str]() for stored in self._names}
        self._counts = {stored: Counter[str]() for stored in self._names}
        self._copied = dict.fromkeys(self._names, 0.0)
        self._distinct = {stored: (DistinctCounter(1), DistinctCounter(2)) for stored in self._names}

    def add(self, facts: TaskFacts) -> None:
        for stored, seed in facts.seeds.items():
            for trial, reflection in seed.reflections.items():
                if reflection.text.strip():
                    # The attempt before this trial is the one that the advice is about.
                    self._add(stored, reflection, seed.attempts.get(trial - 1))

    def _add(self, stored: str, reflection: Reflection, failure: Trajectory | None) -> None:
        text = reflection.text
        (reflects, plans), copies = read_structure(text), copied_share(text, text_before(reflection, failure))
        self._models[stored].add(reflection.author.model)
        self._copied[stored] += copies
        for counter in self._distinct[stored]:
            counter.add(text)
        self._counts[stored].update(
            reflections=1,
            words=len(text.split()),
            restating=copies >= RESTATEMENT_SHARE,
            reflection=reflects,
            new_plan=plans,
            structured=reflects and plans,
        )

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield one row for each arm that wrote something, if any did."""
        rows: list[doc.Row] = [
            {
                "arm": doc.arm_cell(self._names[stored]),
                "written by": doc.join_words(", ", map(doc.code, sorted(self._models[stored]))),
                "reflections": total,
                "mean words": doc.number(counts["words"] / total, ".1f"),
                "distinct-1": doc.number(self._distinct[stored][0].share, ".3f"),
                "distinct-2": doc.number(self._distinct[stored][1].share, ".3f"),
                "copied from the attempt": doc.number(self._copied[stored] / total, ".3f"),
                "restate the attempt": doc.share(counts["restating"], total),
                'section "Reflection"': doc.share(counts["reflection"], total),
                'section "New plan"': doc.share(counts["new_plan"], total),
                "structured": doc.share(counts["structured"], total),
            }
            for stored, counts in self._counts.items()
            if (total := counts["reflections"])
        ]
        if rows:
            form = doc.table(rows, "The form of the reflections.")
            yield doc.chapter("How the reflections were written", _NOTE, form)


def read_structure(text: str) -> tuple[bool, bool]:
    """Return whether a text has a reflection, and whether a new plan; a title without text below it is no section.

    Titles may be in any case and order, numbered, in Markdown, or in the middle of a line after a sentence. The text
    before a plan that comes first is the reflection.
    """
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    titles = {
        heading[1].lower()
        for heading, end in zip(headings, ends, strict=False)
        if _WORD.search(text, heading.end(), end)
    }
    plans = any("plan" in title for title in titles)
    untitled = plans and _WORD.search(text, 0, headings[0].start()) is not None
    return untitled or any("reflection" in title for title in titles), plans
