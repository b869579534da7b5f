"""Reflector that is a language model behind an endpoint: the trained one or any other."""

from retroformer.endpoint.model import LanguageModel
from retroformer.prompts import Render
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory


class ModelReflector:
    """Reflector that asks a language model for advice."""

    def __init__(
        self,
        model: LanguageModel,
        render: Render,
        temperature: float,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        adapter_sha256: str | None = None,
        *,
        tokens: bool = False,
    ) -> None:
        """Ask `model`; with `tokens`, reflections keep their tokens with their log-probabilities."""
        self._model, self._render = model, render
        self._temperature, self._max_new_tokens = temperature, max_new_tokens
        self._stop, self._adapter_sha256, self._tokens = stop, adapter_sha256, tokens

    @property
    def model(self) -> LanguageModel:
        """The model that writes."""
        return self._model

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Write advice for the next trial. Raises EndpointFailure."""
        prompt = self._render(trajectory, memory)
        completion = await self._model.complete(
            prompt,
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            stop=self._stop,
            seed=seed,
            tokens=self._tokens,
        )
        return Reflection(
            text=completion.text.strip(),
            prompt=prompt,
            author=Author(
                # The own server's port differs from run to run; the adapter's hash identifies the model.
                endpoint=self._model.endpoint.base_url or "embedded",
                model=self._model.model,
                adapter_sha256=self._adapter_sha256,
            ),
            sampling=Sampling(temperature=self._temperature, max_new_tokens=self._max_new_tokens, seed=seed),
            finish_reason=completion.finish_reason,
            drawn=completion.drawn,
            usage=completion.usage,
        )
