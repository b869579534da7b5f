"""A client of the engine without HTTP, and prompts for it."""

import queue
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from serve.engine.engine import Engine
from serve.engine.generation import DecodedText, Output, TextGeneration
from serve.engine.model import BASE, Model
from serve.engine.sampling import Choices, SamplingParameters
from tests.support.waiting import becomes_true

GREEDY = SamplingParameters(temperature=0)
PLACES = "countertop 1-2, fridge 1, diningtable 1, cabinet 1-13, drawer 1-4, sinkbasin 1, stoveburner 1-4"
PROMPTS = (
    "The capital of France is",
    f"Task: cool some bread and put it in diningtable\nRoom: {PLACES}\n> go to fridge 1\nclosed\n>",
    f"Task: cool some bread and put it in diningtable\nRoom: {PLACES}\n> go to countertop 1\nbread 1, mug 2\n>",
    "You failed to put a hot mug in the cabinet. In one sentence: what will you do differently next time?\n",
    "Question: Which magazine was started first, Arthur's Magazine or First for Women?\nThought:",
)
END = 0
"""A token that ends a text."""
ENDLESS = 100_000
"""Number of tokens that takes minutes; two requests of this length fit beside each other."""
PATIENCE_SECONDS = 300.0
"""Upper bound for anything here on a loaded machine."""


class Client:
    """Sends requests to an engine and waits for their outputs."""

    def __init__(self, model: Model, max_batch: int = 16) -> None:
        self.model = model
        self.engine = Engine(model, max_batch)
        self.finished: list[TextGeneration] = []

    def send(
        self,
        prompt: str,
        adapter: str = BASE,
        tokens: int = 12,
        sampling: SamplingParameters = GREEDY,
        seed: int = 0,
        choices: Sequence[str] = (),
    ) -> "Pending":
        outputs: queue.Queue[Output] = queue.Queue()
        generation = TextGeneration(
            prompt=self.model.encode(prompt),
            adapter=adapter,
            limit=tokens,
            sampling=sampling,
            stop_tokens=frozenset({END} if choices else ()),
            transcript=DecodedText(self.model.decode, ()),
            deliver=outputs.put,
            generator=torch.Generator().manual_seed(seed),
            choices=Choices([*self.model.encode(text), END] for text in choices) if choices else None,
        )
        self.engine.submit(generation)
        return Pending(generation, outputs)

    def becomes_idle(self) -> bool:
        return becomes_true(lambda: self.engine.load == 0)


class Pending:
    def __init__(self, generation: TextGeneration, outputs: "queue.Queue[Output]") -> None:
        self.generation = generation
        self.outputs = outputs

    def wait(self) -> list[int]:
        assert self.failure() == ""
        return self.generation.tokens

    def failure(self) -> str:
        """Wait for its end and return its failure, empty on success."""
        return self.outputs.get(timeout=PATIENCE_SECONDS).failure

    def goes_on(self) -> bool:
        """Return True if it writes another token."""
        written = len(self.generation.tokens)
        return becomes_true(lambda: len(self.generation.tokens) > written)

    def let_end(self) -> list[int]:
        """Set its limit to the tokens written so far, and return them once it has finished."""
        self.generation.limit = len(self.generation.tokens)
        return self.wait()


def loaded(base: Path, adapters: dict[str, Path]) -> Model:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks transformers by an old name.
        return Model(base, adapters, "float32")
