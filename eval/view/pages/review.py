"""Review: reviewers' marks on stories, and the form that adds one."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import cast
from urllib.parse import urlencode

from pydantic import ValidationError

from retroformer.run.store import Store
from retroformer.run.store.marks import VERDICTS, Verdict

from ..site import NoSuchPage, Page, Site


def review(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show all marks that count, the latest first."""
    marks = [(source.name, mark) for source in site.sources for mark in source.store.marks.current().values()]
    marks.sort(key=lambda item: item[1].marked_at, reverse=True)
    wanted = parameters.get("verdict", "")
    shown = [(run, mark) for run, mark in marks if wanted in ("", mark.verdict)]
    counts = Counter(mark.verdict for _, mark in marks)
    return Page("review.html", "Review", {"marks": shown, "counts": counts, "verdicts": VERDICTS, "wanted": wanted})


def mark_story(site: Site, form: Mapping[str, str]) -> str:
    """Store the mark of a form; return the address of its story.

    Raises:
        NoSuchPage: there is no such story or verdict, or the note is too long.
        StoreError: the store cannot be written.
    """
    run, arm, task, verdict = (form.get(name, "") for name in ("run", "arm", "task", "verdict"))
    source = site.source(run)
    if not site.index.holds(source.name, arm, task):
        raise NoSuchPage(f"There is no story of the task {task!r} in the arm {arm!r}.")
    if verdict not in (*VERDICTS, ""):
        raise NoSuchPage(f"{verdict!r} is no verdict: choose one of {', '.join(VERDICTS)}.")
    with closing(Store(source.store.url, source.name)) as store:
        try:
            store.marks.add(arm, task, cast(Verdict, verdict), form.get("note", "").replace("\r\n", "\n").strip())
        except ValidationError as error:
            raise NoSuchPage(f"The mark was not stored: {error.errors()[0]['msg']}.") from error
    site.index.update_marks()
    return f"story?{urlencode({'run': source.name, 'arm': arm, 'task': task})}#review"
