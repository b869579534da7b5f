"""Tasks of reasoning-gym: generated puzzles and exercises, each with one question and one answer.

The package generates the tasks and scores the answers. It is imported in a process of its own (`datasets.py`).
"""

from functools import partial
from typing import Any

from retroformer.agents.actors import ANSWER
from retroformer.environments.extras import Extras, LeakCheck, LessonParts
from retroformer.integrations.reasoning_gym.advice import MethodArm, MethodReflector, mixed_method
from retroformer.integrations.reasoning_gym.section import ReasoningGym
from retroformer.integrations.reasoning_gym.taskset import BLANK, require_families, taskset
from retroformer.method.protocols import Reflector

__all__ = ["Section", "extras", "taskset"]

Section = ReasoningGym


def _mixed_lessons(parts: LessonParts) -> Reflector:
    return MethodReflector(parts.render, partial(mixed_method, families=tuple(parts.section.families)))


def _leak_check(section: Any, seed: int) -> LeakCheck:
    from retroformer.integrations.reasoning_gym.leak import AnswerLeak

    return AnswerLeak(section)


extras = Extras(
    actors={"answer": ANSWER, "blank": BLANK},
    arms=(MethodArm,),
    lessons={"mixed": _mixed_lessons},
    leak_check=_leak_check,
    require_machine=require_families,
)
