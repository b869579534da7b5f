"""Reflectors: a language model (the trained one, any other, or the teacher) and a program."""

from collections.abc import Callable
from dataclasses import dataclass

from retroformer.endpoint.model import LanguageModel
from retroformer.method.prompts import Render
from retroformer.method.records import Author, Memory, Reflection, Sampling, Trajectory


@dataclass(frozen=True)
class ModelReflector:
    """Reflector that asks a language model for advice."""

    model: LanguageModel
    render: Render
    temperature: float
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    adapter_sha256: str | None = None
    tokens: bool = False
    """Whether reflections keep their tokens with their log-probabilities."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Write advice for the next trial. Raises EndpointFailure."""
        prompt = self.render(trajectory, memory)
        completion = await self.model.complete(
            prompt,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            seed=seed,
            tokens=self.tokens,
        )
        return Reflection(
            text=completion.text.strip(),
            prompt=prompt,
            author=Author(
                # The own server's port differs from run to run; the adapter's hash identifies the model.
                endpoint=str(self.model.endpoint.base_url or "embedded"),
                model=self.model.model,
                adapter_sha256=self.adapter_sha256,
            ),
            sampling=Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens, seed=seed),
            finish_reason=completion.finish_reason,
            drawn=completion.drawn,
            usage=completion.usage,
        )


class WrittenReflector:
    """Reflector whose advice a function writes, given a failure, the memory and a seed.

    A reflection names the rule as its author, and has the prompt that `render` makes.
    """

    def __init__(self, rule: str, render: Render, write: Callable[[Trajectory, Memory, int], str]) -> None:
        self._rule, self._render, self._write = rule, render, write

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice; the same inputs give the same advice. Raises EnvironmentFailure if `write` does."""
        return Reflection(
            text=self._write(trajectory, memory, seed),
            prompt=self._render(trajectory, memory),
            author=Author(endpoint="rule", model=self._rule),
            sampling=Sampling(seed=seed),
        )
