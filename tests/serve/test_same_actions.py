"""A served household adapter acts as it does in plain transformers and peft, alone and in a batch of 16."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import LanguageModel
from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.actors import household_prompt, offered
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step
from tests.serve.running import PATIENCE_SECONDS, Endpoint, ready_line, served_config, start

TOKENS = 20
AT_ONCE = 16
ADVICE = ("Look in cabinet 1-4.", "You put the mug 1 back where it was. Find the fridge first, then cool it.")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def scenes() -> tuple[Scene, ...]:
    """Scenes of generated games, each a step further into its game, some with advice."""
    games = taskset(Alfworld(name="alfworld", source="generated"))
    environment = games.environment()
    scenes = []
    for index, task in enumerate(games.tasks()[:AT_ONCE]):
        seen = environment.reset(task)
        opening, steps = seen.observation, list[Step]()
        for action in games.walkthrough(task)[:index]:
            last, seen = seen, environment.step(action)
            if seen.over:
                seen = last
                break
            steps.append(Step(action=action, observation=seen.observation))
        memory = Memory(reflections=ADVICE[: index % 3])
        scenes.append(Scene(task=task, opening=opening, steps=tuple(steps), memory=memory, choices=seen.choices))
    return tuple(scenes)


class Reference:
    """Greedy continuations by transformers' own loop and peft's own adapter, one prompt at a time."""

    def __init__(self, base: Path, adapter: Path) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        self.model: Any = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype="float32"), str(adapter)
        ).eval()

    def free(self, prompt: str) -> str:
        return self._continue(prompt)

    def one_of(self, prompt: str, texts: Sequence[str]) -> str:
        start = len(self._tokens(prompt))
        sequences = [[*self._tokens(text), self.tokenizer.eos_token_id] for text in texts]

        def allowed(_: int, tokens: torch.Tensor) -> list[int]:
            written = tokens[start:].tolist()
            return [sequence[len(written)] for sequence in sequences if sequence[: len(written)] == written]

        return self._continue(prompt, prefix_allowed_tokens_fn=allowed)

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _continue(self, prompt: str, **options: Any) -> str:
        tokens = torch.tensor([self._tokens(prompt)])
        written = self.model.generate(input_ids=tokens, max_new_tokens=TOKENS, do_sample=False, **options)
        return str(self.tokenizer.decode(written[0, tokens.shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def reference(sketch: Path, sketch_adapters: dict[str, Path]) -> Iterator[Reference]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Reference(sketch, sketch_adapters["first"])
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def endpoint(
    sketch: Path, sketch_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("endpoint")
    process = start(folder, config=served_config(sketch, sketch_adapters))
    yield Endpoint(process, ready_line(process), folder)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


def served(endpoint: Endpoint, scenes: Sequence[Scene], *, at_once: int, admissible: bool) -> list[str]:
    """Return the text of the adapter `first` for each scene, with `at_once` requests in flight."""

    async def all_answers() -> list[str]:
        model = LanguageModel(EndpointSection(model="first", api="completions"), endpoint.url)
        turn = asyncio.Semaphore(at_once)

        async def answer(scene: Scene) -> str:
            async with turn:
                choices = lines(scene) if admissible else None
                completion = await model.complete(
                    household_prompt(scene), temperature=0.0, max_new_tokens=TOKENS, choices=choices
                )
                return completion.text

        try:
            return await asyncio.gather(*map(answer, scenes))
        finally:
            await model.close()

    return asyncio.run(all_answers())


def lines(scene: Scene) -> list[str]:
    return [f" {command}\n" for command in offered(scene)]


def test_the_prompts_differ_in_length_and_offer_many_actions(scenes: tuple[Scene, ...]) -> None:
    assert len({len(household_prompt(scene)) for scene in scenes}) == AT_ONCE
    assert min(len(offered(scene)) for scene in scenes) > 5


def test_free_text_equals_plain_generation(endpoint: Endpoint, reference: Reference, scenes: tuple[Scene, ...]) -> None:
    expected = [reference.free(household_prompt(scene)) for scene in scenes]
    assert served(endpoint, scenes, at_once=AT_ONCE, admissible=False) == expected
    assert served(endpoint, scenes, at_once=1, admissible=False) == expected


def test_admissible_actions_equal_plain_generation_constrained_to_the_same_texts(
    endpoint: Endpoint, reference: Reference, scenes: tuple[Scene, ...]
) -> None:
    expected = [reference.one_of(household_prompt(scene), lines(scene)) for scene in scenes]
    assert all(text in lines(scene) for text, scene in zip(expected, scenes, strict=True))
    assert len(set(expected)) > 3
    assert served(endpoint, scenes, at_once=AT_ONCE, admissible=True) == expected
    assert served(endpoint, scenes, at_once=1, admissible=True) == expected
