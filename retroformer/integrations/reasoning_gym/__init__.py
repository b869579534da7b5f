"""Tasks of reasoning-gym: generated puzzles and exercises, each with one question and one answer.

The package generates the tasks and scores the answers. It is imported in a process of its own.
"""

from retroformer.agents.actors import ANSWER
from retroformer.environments.extras import Extras
from retroformer.integrations.reasoning_gym.advice import AnswerLeak, MethodArm, mixed_lessons
from retroformer.integrations.reasoning_gym.taskset import BLANK, require_families, taskset
from retroformer.integrations.reasoning_gym.taskset import ReasoningGym as Section

__all__ = ["Section", "extras", "taskset"]

extras = Extras(
    actors={"answer": ANSWER, "blank": BLANK},
    arms=(MethodArm,),
    lessons={"mixed": mixed_lessons},
    leak_check=AnswerLeak,
    require_machine=require_families,
)
