"""The part of a page that says who draws the responses that PPO and GRPO train on."""

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, ValidationInfo, field_validator, model_serializer

from retroformer.section import Section


class Generation(Section):
    """A server that draws the responses of an update, in place of the process that trains."""

    base_url: str
    """An OpenAI-compatible `/v1` address that serves train.base_model and takes adapters while it runs, from the disk
    that this process writes to: vLLM, or `python -m serve` with serve.hand_over."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long one response may take, behind the others of its update, before it counts as failed."""
    tolerance: Annotated[float, Field(gt=0)] = 0.1
    """The stage ends where the server's log-probabilities of what it drew are further than this from the policy's own,
    in nats, as a mean over the tokens of an update. bfloat16 makes 0.03 to 0.05 by its rounding, so 0.1 sees
    another model, and not always a policy of some updates ago; where both are float32, 0.001 sees smaller changes of
    the weights. `python -m serve` is besides held to the sha256 of the adapter, which sees any; vLLM tells none."""


class Drawing(Section):
    """What stages have in common that train on responses of their own policy."""

    generation: Generation | None = None
    """Who draws responses; without it the process that trains."""
    draw_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Responses that this process draws at once; without a number as many as a micro-batch has. Drawing keeps no
    gradients but the keys and values of every token, so more or fewer may fit: `train plan` tells. Another number
    draws other responses from the same seed."""

    @field_validator("draw_batch_size")
    @classmethod
    def _draws_itself(cls, size: int | None, known: ValidationInfo) -> int | None:
        if size is not None and known.data.get("generation") is not None:
            raise ValueError("A server draws the responses (generation), and sees to its batches: leave this out")
        return size

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A stage is known by its page, and is the same one where nothing is said of these.
        page: dict[str, Any] = serialize(self)
        absent = [name for name in Drawing.model_fields if page.get(name, ...) is None]
        return {name: value for name, value in page.items() if name not in absent}
