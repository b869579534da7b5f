"""Recorded Reflexion logs become facts of the store, ready to train on."""

import json
from contextlib import closing
from pathlib import Path
from typing import Final, get_args

from collect.recorded import AUTHOR, RecordedLogs, Return, recorded
from retroformer.assembly import Page
from retroformer.conditions import prompts_sha256
from retroformer.environments import hotpotqa
from retroformer.environments.sections import Hotpotqa
from retroformer.errors import ConfigError
from retroformer.prompts import reflection_renderer
from retroformer.store import NewReflection, NewTrajectory, Store, open_store

RATED_BY: Final = "f1_with_stop_words"
"""The return of recorded attempts: ReAct's F1, by which these runs have been counted before.

The F1 without stop words, which rates our own rollouts, moves three of the 261: two gains that consist of a shared
"of" become ties, and one that consists of a shared "and" becomes a loss.
"""


def import_logs(page: Page, logs: str, *, as_json: bool) -> str:
    """Store what the logs tell, and say what it is; the last line is JSON where asked.

    Raises:
        ConfigError: the page is not about HotPotQA.
        MissingInput: there are no logs.
    """
    section = page.experiment.environment
    if not isinstance(section, Hotpotqa):
        raise ConfigError(f"{page.path} is about {section.name}; recorded trajectories are of HotPotQA only.")
    told = recorded(Path(logs), ids=_ids(section), answer_return=RATED_BY)
    with closing(open_store(page.experiment)) as store:
        _keep(store, told, page)
    counts = told.counts(RATED_BY)
    others = {name: told.counts(name).model_dump() for name in get_args(Return)}
    lines = [
        f"{len(told.attempts)} attempts and {len(told.reflections)} reflections are in {store.url}",
        *(f"skipped {count} {what}" for what, count in told.skipped.items()),
        *(f"by {name}: {count}" for name, count in others.items()),
    ]
    if as_json:
        summary = counts.model_dump() | {
            "attempts": len(told.attempts),
            "return": RATED_BY,
            "by_return": others,
            "skipped": told.skipped,
        }
        lines.append(json.dumps(summary))
    return "\n".join(lines)


def _keep(store: Store, told: RecordedLogs, page: Page) -> None:
    """Store attempts and reflections in one transaction."""
    render = reflection_renderer(page.experiment)
    view = page.experiment.reflector.view
    words = None if view == "compact" else prompts_sha256(page.experiment)
    logged = {"author": AUTHOR.model_dump(), "return": RATED_BY, "view": view, "prompts_sha256": words}
    for arm in {attempt.key.arm for attempt in told.attempts}:
        store.declare(arm, {"recorded": logged})
    facts: list[NewTrajectory | NewReflection] = [
        NewTrajectory(attempt.key, attempt.trajectory) for attempt in told.attempts
    ]
    for one in told.reflections:
        prompt = render(one.failed.trajectory, one.failed.memory)
        facts.append(NewReflection(one.key, 0, one.reflection.model_copy(update={"prompt": prompt})))
    store.add_all(lambda: facts)


def _ids(section: Hotpotqa) -> dict[str, str]:
    """The ids of the questions, where a folder of data is named; logs name questions by their text only."""
    if section.data is None:
        return {}
    return hotpotqa.taskset(section.model_copy(update={"split": "all"})).ids_by_question()
