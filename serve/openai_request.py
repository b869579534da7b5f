"""What a client may ask for in the words of the OpenAI protocol; everything else is refused and never ignored."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from retroformer.own_server import choices_in, seed_field, seed_in, without_fields
from serve import bounds
from serve.errors import RequestError
from serve.openai_json import BAD_REQUEST, shown

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
"""Parameters that are not supported, with the values that ask for nothing; null asks for nothing in any of them."""
NEUTRAL_IN_MESSAGE: Mapping[str, tuple[Any, ...]] = {"tool_calls": ([],), "annotations": ([],), "refusal": ("",)}


def _drop_neutral(page: Any, fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    """`page` without what asks for nothing.

    Raises:
        RequestError: it has a parameter that is not supported.
    """
    if not isinstance(page, dict):
        return page
    for name, value in page.items():
        if name in fields or value is None:
            continue
        # `0 == False` in Python: of numbers and flags, whichever is meant, these ask for nothing.
        if name not in neutral or value not in neutral[name]:
            raise RequestError(BAD_REQUEST, f"{shown(name)} is not supported here.", shown(name))
    return {name: value for name, value in page.items() if name in fields and value is not None}


def _text_of(content: Any) -> Any:
    """The text of a message whose content comes in parts, joined as FastChat joins them."""
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
    def of(cls, page: dict[str, Any]) -> Self:
        """What `page` asks for.

        Raises:
            RequestError: it cannot be had, and the message names the field.
        """
        try:
            return cls.model_validate(page)
        except ValidationError as error:
            raise refusal(error) from None


class Message(_Strict):
    """A turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, page: Any) -> Any:
        return _drop_neutral(page, cls.model_fields, NEUTRAL_IN_MESSAGE)


def _one_system_message(messages: list[Message]) -> list[Message]:
    # FastChat keeps the last one, and puts it first.
    if any(message.role == "system" for message in messages[1:]):
        raise ValueError("a system message is the first one, or there is none")
    return messages


Count = Annotated[int, Field(ge=1, le=bounds.LARGEST_COUNT)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
ModelName = Annotated[str, Field(max_length=bounds.NAME_CHARACTERS)]


class Asked(_Strict):
    """What both calls of the protocol have."""

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
    def _without_neutral(cls, page: Any) -> Any:
        return _drop_neutral(page, cls.model_fields, cls.neutral)

    @property
    def answers(self) -> int:
        """How many texts are to be written."""
        return self.n

    def for_fastchat(self) -> dict[str, Any]:
        """The same in the words that FastChat's server takes: it has none for seeds, but hands on stop strings."""
        page = self.model_dump(exclude={"seed"}, exclude_none=True)
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if self.seed is not None and seed_in(stops) is None:
            page["stop"] = [*stops, seed_field(self.seed % 2**63)]
        return page


class Chat(Asked):
    """A call of /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NEUTRAL, "echo": (False,)}

    messages: Annotated[
        list[Message], Field(min_length=1, max_length=bounds.MESSAGES), AfterValidator(_one_system_message)
    ]
    max_completion_tokens: Count | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "max_completion_tokens differs from max_tokens, which is its older name."
            raise RequestError(BAD_REQUEST, message, "max_completion_tokens")
        return self

    def for_fastchat(self) -> dict[str, Any]:
        page = super().for_fastchat()
        limit = page.pop("max_completion_tokens", None)
        return page if limit is None else {**page, "max_tokens": limit}


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


class Completion(Asked):
    """A call of /v1/completions with a prompt in words."""

    # Zero asks for the log-probabilities of the answer's own tokens.
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
    """A prompt to be counted."""

    model: ModelName
    prompt: str
    max_tokens: Annotated[int, Field(ge=0, le=bounds.LARGEST_COUNT)]


class TokenCheck(_Strict):
    """A call of /api/v1/token_check."""

    prompts: Annotated[list[TokenCheckItem], Field(max_length=bounds.ANSWERS)]


def refusal(error: ValidationError) -> RequestError:
    """The first fault, as an answer that names its field."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Behind the name of a field with several types stands the name of the type.
    path = [part for part in fault["loc"] if not (isinstance(part, str) and ("[" in part or part in _TYPES))]
    field = shown(".".join(map(str, path)))
    message = fault["msg"].removeprefix("Value error, ")
    return RequestError(BAD_REQUEST, f"{field}: {message}." if field else f"{message}.", field or None)


_TYPES = frozenset({"str", "int", "float", "bool", "constrained-int"})
