"""Advice for a warm start: methods for families of reasoning-gym, for other families, and phrases without content."""

from collections.abc import Callable, Collection, Mapping
from random import Random
from types import MappingProxyType
from typing import Literal

from retroformer.agents.arms.arm import Arm, ArmParts
from retroformer.agents.arms.baselines import PHRASES
from retroformer.method.prompts import Render
from retroformer.method.protocols import Reflector
from retroformer.method.records import Author, Memory, Reflection, Sampling, Trajectory

METHODS: Mapping[str, str] = MappingProxyType(
    {
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
)
"""A sentence on how to solve the tasks of a family."""
_RIGHT, _OTHER = 0.6, 0.2
"""Shares of lessons with the method of the task's family, and of another family; the rest has no content."""


Choose = Callable[[str, int], str]
"""Function from the id of a task and a seed to advice."""


class MethodArm(Arm):
    """The sentence written beforehand for the task's family."""

    kind: Literal["rule"] = "rule"

    def build(self, parts: ArmParts) -> Reflector:
        return MethodReflector(parts.render(), fitting_method)

    def describe(self) -> str:
        return "the sentence written beforehand for the task's family"


class MethodReflector:
    """Reflector without a model that chooses a sentence by task and seed."""

    def __init__(self, render: Render, choose: Choose) -> None:
        self._render, self._choose = render, choose

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the chosen sentence; the same inputs give the same advice."""
        return Reflection(
            text=self._choose(trajectory.task.id, seed),
            prompt=self._render(trajectory, memory),
            author=Author(endpoint="rule", model="methods"),
            sampling=Sampling(seed=seed),
        )


def fitting_method(task_id: str, seed: int = 0) -> str:
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
