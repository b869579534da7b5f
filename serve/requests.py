"""Requests in the OpenAI protocol, and how they are refused: whatever is not supported is refused, never ignored."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from starlette.responses import JSONResponse

from retroformer.files.text import surrogate_in_json

ANSWERS = 128
"""Answers to one request: `n` times the number of prompts. The OpenAI protocol has the same limit."""
MESSAGES = 4096
"""Messages of one chat; a context of 32,000 tokens holds no more messages of eight tokens each."""
STOPS = 64
STOP_CHARACTERS = 1024
"""Length of one stop string: each piece of a stream is compared with every prefix of it."""
CHOICES = 4096
CHOICE_CHARACTERS = 500_000
"""Length of all choices together: their tokens become a tree in memory."""
NAME_CHARACTERS = 512
"""Length of a model name: a file name (255), `+best64` and a hash fit."""
STOP_TOKENS = 1024
LARGEST_COUNT = 2**31 - 1
"""Limit of `max_tokens` and `top_k`: a larger number is a mistake, and no model has such a context."""
RETRY_SECONDS = 5
"""Value of Retry-After. Clients of this protocol honour up to a minute."""

_TYPES = frozenset({"str", "int", "float", "bool", "constrained-int"})


class RequestError(Exception):
    """Raised to answer a request with an error status; `field` is the name of the parameter at fault."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.status}}

    @property
    def response(self) -> JSONResponse:
        """Response for the client."""
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        if self.status in (408, 413):
            headers["Connection"] = "close"  # The rest of the request will not be read.
        return JSONResponse(self.body, self.status, headers)


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    NaN, infinities and integers of more than 64 bits become non-finite floats, which the check of their field refuses.

    Raises:
        RequestError: it is not JSON or not an object, has a name twice, or text that is not Unicode.
    """
    try:
        text = body.decode()
        parsed = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise RequestError(400, "The request body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(400, f"The request body is not JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise RequestError(400, "The request body is not a JSON object.")
    if (path := surrogate_in_json(parsed, text)) is not None:
        field = _shown(path)
        raise RequestError(400, f"{field}: half a character (a lone surrogate) is not text.", field)
    return parsed


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = _shown(next(name for name in names if names.count(name) > 1))
        raise RequestError(400, f"{duplicate} appears twice in one object.", duplicate)
    return parsed


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= 20 else math.inf  # The longest 64-bit integer has 20 characters.


def _shown(name: str) -> str:
    """Return a client's own name for something, shortened and in ASCII, as an error message may repeat it."""
    return name[:100].encode("ascii", "backslashreplace").decode()


WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "prediction", "reasoning_effort"), ()),
    **dict.fromkeys(("best_of", "length_penalty", "repetition_penalty"), (1,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **dict.fromkeys(("functions", "images", "tools"), ([],)),
    **dict.fromkeys(("logit_bias", "metadata"), ({},)),
    **dict.fromkeys(("min_p", "top_logprobs"), (0,)),
    **dict.fromkeys(("store", "use_beam_search"), (False,)),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_usage": False}),
    "suffix": ("",),
}
"""Unsupported parameters, with the values that have no effect and are accepted; null has no effect in any of them."""


class _Body(BaseModel):
    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Return the request in `body`. Raises RequestError, which names the first field at fault."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # After the name of a field with several types, pydantic puts the name of the type.
        path = [part for part in fault["loc"] if not (isinstance(part, str) and ("[" in part or part in _TYPES))]
        field = _shown(".".join(map(str, path)))
        raise RequestError(400, f"{field}: {fault['msg'].removeprefix('Value error, ')}.", field)


class _Strict(_Body):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    without_effect: ClassVar[Mapping[str, tuple[Any, ...]]] = WITHOUT_EFFECT

    @model_validator(mode="before")
    @classmethod
    def _drop_what_has_no_effect(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        # `0 == False` in Python, but neither has an effect, whether a number or a boolean is meant.
        fields = {
            name: value
            for name, value in body.items()
            if value is not None and value not in cls.without_effect.get(name, ())
        }
        for name in fields:
            if name not in cls.model_fields:
                raise RequestError(400, f"{_shown(name)} is not supported here.", _shown(name))
        return fields


def _text_of(content: Any) -> Any:
    """Return the text of a message; content in parts is joined with line feeds, as in FastChat."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not (isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text"):
            raise ValueError("only parts of the form {'type': 'text', 'text': ...} are supported")
        if not isinstance(part["text"], str):
            raise ValueError("the text of a part is not a string")
    return "\n".join(part["text"] for part in content)


class RequestMessage(_Strict):
    """A message of a chat."""

    without_effect = {"tool_calls": ([],), "annotations": ([],), "refusal": ("",)}

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]


def _one_system_message(messages: list[RequestMessage]) -> list[RequestMessage]:
    # FastChat keeps only the last system message, and puts it first.
    if any(message.role == "system" for message in messages[1:]):
        raise ValueError("only the first message may be a system message")
    return messages


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _not_too_long(choices: list[str]) -> list[str]:
    if sum(map(len, choices)) > CHOICE_CHARACTERS:
        raise ValueError(f"more than {CHOICE_CHARACTERS} characters")
    return choices


Count: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Stop: TypeAlias = Annotated[str, StringConstraints(max_length=STOP_CHARACTERS)]


class Chat(NamedTuple):
    """A prompt as a chat."""

    messages: Sequence[RequestMessage]


Prompt: TypeAlias = str | list[int] | Chat
"""A text, token ids, or a chat."""


class GenerationRequest(_Strict):
    """Fields of both chat and completion requests."""

    model: Annotated[str, Field(max_length=NAME_CHARACTERS)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    """The default is FastChat's."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Literal[-1] | Count = -1
    n: Annotated[int, Field(ge=1, le=ANSWERS)] = 1
    max_tokens: Count | None = None
    """Tokens of an answer; None: as many as the context holds."""
    stop: Annotated[list[Stop], BeforeValidator(_listed), Field(max_length=STOPS)] = []
    stop_token_ids: Annotated[list[int], Field(max_length=STOP_TOKENS)] = []
    ignore_eos: bool = False
    """If true, only `stop` and `stop_token_ids` end a text before `max_tokens`."""
    choices: Annotated[list[str], Field(min_length=1, max_length=CHOICES), AfterValidator(_not_too_long)] | None = None
    """Texts one of which the answer must be, cut at a stop string."""
    stream: bool = False
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    return_token_ids: bool = False
    logprobs: Any = None
    user: str | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts, each of which gets `n` answers."""
        raise NotImplementedError

    @property
    def with_tokens(self) -> bool:
        """True if each answer has its token ids and their log-probabilities under the model itself."""
        return self.return_token_ids or self.logprobs is not None

    def echoed(self, number: int) -> str:
        """Return the text that comes before answer `number`."""
        return ""

    @property
    def answers(self) -> int:
        """Number of texts to be written."""
        return self.n * len(self.prompts)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.answers > ANSWERS:
            raise RequestError(400, f"n times the number of prompts is more than {ANSWERS}.", "n")
        if self.with_tokens and (self.stream or self.choices):
            raise RequestError(400, "logprobs is not supported in streams, nor with choices.", "logprobs")
        return self


class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    without_effect = {**WITHOUT_EFFECT, "echo": (False,), "logprobs": (False,)}

    messages: Annotated[
        list[RequestMessage], Field(min_length=1, max_length=MESSAGES), AfterValidator(_one_system_message)
    ]
    max_completion_tokens: Count | None = None
    logprobs: Literal[True] | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        return [Chat(self.messages)]

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = "max_completion_tokens differs from max_tokens, which is its older name."
            raise RequestError(400, message, "max_completion_tokens")
        self.max_tokens = next(iter(limits), None)
        return self


def _prompts(prompt: Any) -> Any:
    if not isinstance(prompt, list):
        return [prompt] if isinstance(prompt, str) else prompt
    kinds = {type(part) for part in prompt}
    if kinds not in ({str}, {int}):
        raise ValueError("a list holds prompts in text, or the token ids of one prompt")
    return prompt if kinds == {str} else [prompt]


class CompletionRequest(GenerationRequest):
    """A request to /v1/completions, with prompts in text or one prompt in token ids, as in vLLM."""

    # Here logprobs=0 has an effect: it requests the log-probabilities of the answer's own tokens.
    prompt: Annotated[list[str] | list[list[int]], BeforeValidator(_prompts)]
    max_tokens: Count = 16
    echo: bool = False
    logprobs: Literal[0] | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        return self.prompt

    def echoed(self, number: int) -> str:
        prompt = self.prompt[number // self.n]
        return prompt if self.echo and isinstance(prompt, str) else ""


class AdapterRequest(_Body):
    """A request to load or unload an adapter, in vLLM's form."""

    lora_name: str
    lora_path: Path = Path()
