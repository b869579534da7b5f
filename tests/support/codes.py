"""A task whose right answer a failed attempt shows: an agent that reads its advice solves it at the second attempt."""

import re
from contextlib import closing
from typing import Any

from retroformer.method.rating import ratings
from retroformer.method.records import Key
from retroformer.run.store import Store
from tests.support.endpoint import Body, prompt_of
from tests.support.facts import causes


def enter(code: str, advice: str) -> str:
    """Return what an agent says that enters the number in its advice."""
    entered = (re.findall(r"Enter (\d+)", advice) or ["0000"])[-1]
    return f"{entered} opens it" if entered == code else f"{entered} fails; the note says {code}"


def opens(task: Any, said: str) -> float:
    return float(said.endswith("opens it"))


def advise(body: Body) -> str:
    """Return the number that the attempt in the prompt has shown."""
    shown = re.findall(r"the note says (\d+)", prompt_of(body))
    return f"Enter {shown[-1]}." if shown else "Look around."


def facts(url: str, arm: str = "collect") -> tuple[dict[Key, Any], list[float], list[str]]:
    """Return the attempts, the ratings and the causes of invalid attempts."""
    with closing(Store(url, "agent")) as store:
        gains = [reflection.rating for reflection in ratings(store, arm)]
        return dict(store.stream_trajectories(arm)), gains, causes(store, arm)
