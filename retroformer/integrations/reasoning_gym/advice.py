"""Advice for a warm start: methods for families of reasoning-gym, for other families, and phrases without content."""

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from retroformer.agents.phrases import PHRASES
from retroformer.prompts import Render
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory

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
_RIGHT, _OTHER = 0.4, 0.4
"""Shares of advice with the method of the task's family, and of another family; the rest has no content."""


class MethodReflector:
    """Reflector without a model: it teaches the form of advice. Ratings teach which method fits which task."""

    def __init__(self, render: Render) -> None:
        self._render = render

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice drawn by seed and task; the same inputs give the same advice."""
        return Reflection(
            text=mixed_method(trajectory.task.id, seed),
            prompt=self._render(trajectory, memory),
            author=Author(endpoint="rule", model="methods"),
            sampling=Sampling(seed=seed),
        )


def mixed_method(task_id: str, seed: int) -> str:
    """Return the method of the task's family, of another family, or a phrase without content."""
    random = Random(f"{seed}/{task_id}")
    family, share = task_id.split("/")[1], random.random()
    if share < _RIGHT and family in METHODS:
        return METHODS[family]
    if share < _RIGHT + _OTHER:
        return METHODS[random.choice([name for name in METHODS if name != family])]
    return random.choice(PHRASES[:5])
