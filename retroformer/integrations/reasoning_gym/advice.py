"""Advice by rule for families of reasoning-gym, and the check of whether advice gives the answer away."""

import re
from collections.abc import Collection, Mapping, Sequence
from random import Random
from threading import Lock
from typing import Any, Literal, get_args

from retroformer.agents.arms.arm import Arm, ArmParts
from retroformer.agents.arms.baselines import PHRASES
from retroformer.agents.reflector import WrittenReflector
from retroformer.config.imports import require_extra
from retroformer.environments.extras import LessonParts
from retroformer.environments.tasksets import row_of
from retroformer.integrations.reasoning_gym.taskset import DatasetProcess, Split, places_of
from retroformer.method.protocols import Reflector
from retroformer.method.records import Trajectory
from retroformer.method.repetition import texts_of

METHODS: Mapping[str, str] = {
    "base_conversion": "Divide by the new base again and again, and read the remainders from last to first.",
    "basic_arithmetic": "Work out brackets first, then products and quotients, then sums from left to right.",
    "chain_sum": "Go from left to right and keep a running total: add after a plus, subtract after a minus.",
    "coin_flip": "Turn the probabilities of single flips into a product, and count the arrangements.",
    "count_bits": "Write the number in binary, then count the ones.",
    "gcd": "Replace the larger number by the remainder of the division until the remainder is zero.",
    "lcm": "Find the greatest common divisor first, then divide the product by it.",
    "leg_counting": "Write the legs of one animal of each kind, multiply by how many there are, then add.",
    "letter_counting": "Go through the text word by word and count every occurrence of the letter, twice in a word "
    "if it is there twice.",
    "number_sorting": "Compare the signs first, then pick the next number in order again and again.",
    "prime_factorization": "Divide by the smallest prime that fits, again and again, and keep every factor.",
    "propositional_logic": "Write the premises as implications and follow them one at a time.",
    "spell_backward": "Write the letters one by one from the last to the first and leave none out.",
    "word_sequence_reversal": "Number the words and write them from the last number to the first.",
    "word_sorting": "Compare the first letters by their code: capitals come before small letters.",
}
"""A sentence on how to solve the tasks of a family."""
_RIGHT, _OTHER = 0.6, 0.2
"""Shares of lessons with the method of the task's family, and of another family; the rest has no content."""


class MethodArm(Arm):
    """The sentence written beforehand for the task's family."""

    kind: Literal["rule"] = "rule"

    def build(self, parts: ArmParts) -> Reflector:
        return WrittenReflector("methods", parts.render(), lambda failure, *_: fitting_method(failure.task.id))

    def describe(self) -> str:
        return "the sentence written beforehand for the task's family"


def mixed_lessons(parts: LessonParts) -> Reflector:
    """Return the writer of the warm start's advice."""
    families = tuple(parts.section.families)
    return WrittenReflector(
        "methods", parts.render, lambda failure, memory, seed: mixed_method(failure.task.id, seed, families)
    )


def fitting_method(task_id: str) -> str:
    """Return the method of the task's family, or a phrase without content if it has none here."""
    return METHODS.get(family_of(task_id), PHRASES[0])


def mixed_method(task_id: str, seed: int, families: Collection[str]) -> str:
    """Return the method of the task's family, that of another of these families, or a phrase without content."""
    random = Random(f"{seed}/{task_id}")
    family, share = family_of(task_id), random.random()
    if share < _RIGHT and family in METHODS:
        return METHODS[family]
    others = [name for name in METHODS if name in families and name != family]
    if share < _RIGHT + _OTHER and others:
        return METHODS[random.choice(others)]
    return random.choice(PHRASES[:5])


def family_of(task_id: str) -> str:
    """Return the family in an id of the form SPLIT/FAMILY/NUMBER."""
    return task_id.split("/")[1]


class AnswerLeak:
    """Check whether advice holds the answer that the package generated, although no attempt shows it.

    The answer counts as a whole word or number, whatever its case. A family may accept other answers as well; those are
    not noticed.
    """

    rule = (
        "Advice gives the answer away if it holds the right answer as a whole word or number, and neither the question "
        "nor the attempts before it do."
    )

    def __init__(self, section: Any, seed: int) -> None:
        """Describe the tasks. Raises MissingInput if the package is not installed."""
        require_extra("reasoning-gym", "reasoning_gym")
        self._lock = Lock()
        sections = [section.model_copy(update={"split": split}) for split in get_args(Split)]
        self._places = {name: place for section in sections for name, place in places_of(section).items()}
        self._datasets = {section.split: DatasetProcess(section) for section in sections}

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return the right answer if the advice holds it, and neither the question nor these attempts do; else "".

        Raises:
            UnknownTask: there is no such task.
            EnvironmentFailure: the package could not generate the task.
        """
        task = attempts[-1].task
        place = row_of(self._places, task)
        # The process with the datasets answers one request at a time; the viewer asks from several threads.
        with self._lock:
            answer = self._datasets[task.id.partition("/")[0]].text("answer", *place)
        if not holds(advice, answer):
            return ""
        return "" if any(holds(text, answer) for attempt in attempts for text in texts_of(attempt)) else answer


def holds(text: str, answer: str) -> bool:
    """Return True if the answer stands in a text as a whole word or number: 24 is neither in 124 nor in -24 or 2.24."""
    pattern = rf"(?<![\w.-]){re.escape(answer.strip().casefold())}(?!\w|\.\d)"
    return bool(answer.strip()) and re.search(pattern, text.casefold()) is not None
