"""Tasks of reasoning-gym: generated puzzles and exercises, each with one question and one answer.

The package generates the tasks and scores the answers. It is imported in a process of its own (`datasets.py`).
"""

from retroformer.agents.answer import ANSWER
from retroformer.environments.extras import Extras
from retroformer.integrations.reasoning_gym.advice import MethodReflector
from retroformer.integrations.reasoning_gym.section import ReasoningGym
from retroformer.integrations.reasoning_gym.taskset import BLANK, ReasoningGymTaskset, require_families, taskset

__all__ = ["ReasoningGymTaskset", "Section", "extras", "taskset"]

Section = ReasoningGym

extras = Extras(
    actors={"answer": ANSWER, "blank": BLANK},
    lessons={"mixed": MethodReflector},
    require_machine=require_families,
)
