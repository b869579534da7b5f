"""Requests that a client may make in the OpenAI protocol; everything else is refused and never ignored."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from retroformer.endpoint.own_server import choices_in, seed_field, seed_in, without_fields

from . import bounds
from .errors import RequestError
from .openai_json import BAD_REQUEST, shown

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_usage": False}),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
"""Unsupported parameters, with the values that have no effect and are accepted; null has no effect in any of them."""
NEUTRAL_IN_MESSAGE: Mapping[str, tuple[Any, ...]] = {"tool_calls": ([],), "annotations": ([],), "refusal": ("",)}


def _drop_neutral(body: Any, fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    """Return `body` without the parameters that have no effect.

    Raises:
        RequestError: the body has an unsupported parameter.
    """
    if not isinstance(body, dict):
        return body
    for name, value in body.items():
        if name in fields or value is None:
            continue
        # `0 == False` in Python, but neither has an effect, whether a number or a boolean is meant.
        if name not in neutral or value not in neutral[name]:
            raise RequestError(BAD_REQUEST, f"{shown(name)} is not supported here.", shown(name))
    return {name: value for name, value in body.items() if name in fields and value is not None}


def _text_of(content: Any) -> Any:
    """Return the text of a message; content in parts is joined as FastChat joins it."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not (isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text"):
            raise ValueError("only parts of the form {'type': 'text', 'text': ...} are supported")
        if not isinstance(part["text"], str):
            raise ValueError("the text of a part is not a string")
    return "\n".join(part["text"] for part in content)


def _bounded_stops(stop: str | list[str]) -> str | list[str]:
    stops = [stop] if isinstance(stop, str) else stop
    plain = without_fields(stops)
    if len(plain) > bounds.STOPS:
        raise ValueError(f"more than {bounds.STOPS} stop strings")
    if any(len(text) > bounds.STOP_CHARACTERS for text in plain):
        raise ValueError(f"a stop string of more than {bounds.STOP_CHARACTERS} characters")
    try:
        choices = choices_in(stops) or []
    except ValueError as error:
        raise ValueError(f"the choices cannot be used: {error}") from None
    if len(choices) > bounds.CHOICES or sum(map(len, choices)) > bounds.CHOICE_CHARACTERS:
        raise ValueError(
            f"more than {bounds.CHOICES} choices, or more than {bounds.CHOICE_CHARACTERS} characters of them"
        )
    seed_in(stops)
    return stop


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """Return the request in `body`.

        Raises:
            RequestError: the body is invalid; the message names the field.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise refusal(error) from None


class ChatMessage(_Strict):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, body: Any) -> Any:
        return _drop_neutral(body, cls.model_fields, NEUTRAL_IN_MESSAGE)


def _one_system_message(messages: list[ChatMessage]) -> list[ChatMessage]:
    # FastChat keeps only the last system message, and puts it first.
    if any(message.role == "system" for message in messages[1:]):
        raise ValueError("only the first message may be a system message")
    return messages


Count = Annotated[int, Field(ge=1, le=bounds.LARGEST_COUNT)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
ModelName = Annotated[str, Field(max_length=bounds.NAME_CHARACTERS)]


class GenerationRequest(_Strict):
    """Fields of both chat and completion requests."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL

    model: ModelName
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Literal[-1] | Count | None = None
    n: Annotated[int, Field(ge=1, le=bounds.ANSWERS)] = 1
    max_tokens: Count | None = None
    stop: Annotated[str | list[str], AfterValidator(_bounded_stops)] | None = None
    stream: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, body: Any) -> Any:
        return _drop_neutral(body, cls.model_fields, cls.neutral)

    @property
    def answers(self) -> int:
        """Number of texts to be written."""
        return self.n

    def for_fastchat(self) -> dict[str, Any]:
        """Return the request for FastChat's server, the seed as a stop string, since FastChat forwards no seeds."""
        fields = self.model_dump(exclude={"seed"}, exclude_none=True)
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if self.seed is not None and seed_in(stops) is None:
            fields["stop"] = [*stops, seed_field(self.seed % 2**63)]
        return fields


class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NEUTRAL, "echo": (False,)}

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=bounds.MESSAGES), AfterValidator(_one_system_message)
    ]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    """If true, the answer has the ids of its tokens and their log-probabilities under the model itself."""
    return_token_ids: bool = False
    """vLLM's parameter for token ids, which come with `logprobs` here."""

    @model_validator(mode="after")
    def _tokens_of_one_answer(self) -> Self:
        if self.return_token_ids and not self.logprobs:
            raise RequestError(BAD_REQUEST, "return_token_ids is supported with logprobs only.", "return_token_ids")
        if self.logprobs and (self.stream or self.n > 1):
            raise RequestError(BAD_REQUEST, "logprobs is supported for one answer that is not streamed.", "logprobs")
        if self.logprobs and choices_in([self.stop] if isinstance(self.stop, str) else self.stop or []):
            raise RequestError(BAD_REQUEST, "logprobs is not supported with choices.", "logprobs")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "max_completion_tokens differs from max_tokens, which is its older name."
            raise RequestError(BAD_REQUEST, message, "max_completion_tokens")
        return self

    def for_fastchat(self) -> dict[str, Any]:
        fields = super().for_fastchat()
        del fields["logprobs"], fields["return_token_ids"]
        limit = fields.pop("max_completion_tokens", None)
        return fields if limit is None else {**fields, "max_tokens": limit}


def _prompts(prompt: Any) -> Any:
    if isinstance(prompt, list):
        if not prompt:
            raise ValueError("the list is empty")
        if len(prompt) > bounds.ANSWERS:
            raise ValueError(f"more than {bounds.ANSWERS} prompts in one request")
        if all(type(token) is int for token in prompt):
            raise ValueError("token ids are taken only where the server has serve.hand_over")
        if not all(isinstance(text, str) for text in prompt):
            raise ValueError("a list of prompts has texts and nothing else")
    return prompt


class PromptRequest(GenerationRequest):
    """A request to /v1/completions with a prompt in text."""

    # Here logprobs=0 has an effect: it requests the log-probabilities of the answer's own tokens.
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NEUTRAL, "logprobs": ()}

    prompt: Annotated[str | list[str], BeforeValidator(_prompts)]
    echo: bool = False

    @property
    def answers(self) -> int:
        return self.n * (len(self.prompt) if isinstance(self.prompt, list) else 1)

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if self.answers > bounds.ANSWERS:
            raise RequestError(BAD_REQUEST, f"n times the number of prompts is more than {bounds.ANSWERS}.", "n")
        return self


class TokenCheckItem(_Strict):
    """A prompt whose tokens are to be counted."""

    model: ModelName
    prompt: str
    max_tokens: Annotated[int, Field(ge=0, le=bounds.LARGEST_COUNT)]


class TokenCheck(_Strict):
    """A request to /api/v1/token_check."""

    prompts: Annotated[list[TokenCheckItem], Field(max_length=bounds.ANSWERS)]


def refusal(error: ValidationError) -> RequestError:
    """Return the first fault as an error that names its field."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # After the name of a field with several types, pydantic puts the name of the type.
    path = [part for part in fault["loc"] if not (isinstance(part, str) and ("[" in part or part in _TYPES))]
    field = shown(".".join(map(str, path)))
    message = fault["msg"].removeprefix("Value error, ")
    return RequestError(BAD_REQUEST, f"{field}: {message}." if field else f"{message}.", field or None)


_TYPES = frozenset({"str", "int", "float", "bool", "constrained-int"})
