"""Requests in the OpenAI protocol. What is not supported is refused, never ignored; so is a prompt that is too long."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

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

from retroformer.endpoint.request_guard import Refusal

from .engine.chat_tokenizer import ChatTokenizer
from .guards import shorten_name

ANSWERS = 128
"""Answers to one request: `n` times the number of prompts. The OpenAI protocol has the same limit."""
MESSAGES = 4096
"""Messages of one chat."""
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
"""Limit of `max_tokens` and `top_k`."""

_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("best_of", "length_penalty", "repetition_penalty"), (1,)),
    **dict.fromkeys(("echo", "logprobs", "store", "use_beam_search"), (False,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **dict.fromkeys(("annotations", "functions", "images", "tool_calls", "tools"), ([],)),
    **dict.fromkeys(("logit_bias", "metadata"), ({},)),
    **dict.fromkeys(("min_p", "top_logprobs"), (0,)),
    **dict.fromkeys(("refusal", "suffix"), ("",)),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
}
"""Values of unsupported parameters that request nothing and are accepted; null is accepted in all of them."""


class _Body(BaseModel):
    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Return the request in `body`. Raises Refusal, which names the first field at fault."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = shorten_name(".".join(map(str, fault["loc"])))
        message = "not supported here" if fault["type"] == "extra_forbidden" else fault["msg"]
        raise Refusal(400, f"{field}: {message.removeprefix('Value error, ')}.", field)


class _Strict(_Body):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_values(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        own = cls.model_fields
        return {
            name: value
            for name, value in body.items()
            if value is not None and (name in own or value not in _NEUTRAL_VALUES.get(name, ()))
        }


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

    role: Annotated[
        Literal["system", "user", "assistant"], BeforeValidator(lambda role: "system" if role == "developer" else role)
    ]
    content: Annotated[str, BeforeValidator(_text_of)]
    name: str | None = None
    """Accepted and without effect, as `user` is: agents name themselves in each message."""

    @model_validator(mode="before")
    @classmethod
    def _read_an_empty_turn(cls, body: Any) -> Any:
        is_empty = isinstance(body, dict) and body.get("role") == "assistant" and body.get("content") is None
        return {**body, "content": ""} if is_empty else body


def _one_system_message(messages: list[RequestMessage]) -> list[RequestMessage]:
    # FastChat keeps only the last system message, and puts it first.
    if any(message.role == "system" for message in messages[1:]):
        raise ValueError("only the first message may be a system message")
    return messages


def _limit_choices(choices: list[str]) -> list[str]:
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
"""A text in which nothing is a control token, token ids, or a chat."""


class GenerationRequest(_Strict):
    """Fields of both chat and completion requests."""

    model: Annotated[str, Field(max_length=NAME_CHARACTERS)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    """The default is FastChat's."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=LARGEST_COUNT)] = -1
    n: Annotated[int, Field(ge=1, le=ANSWERS)] = 1
    max_tokens: Count | None = None
    """Tokens of an answer; None: as many as the context holds."""
    stop: Annotated[
        list[Stop], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop), Field(max_length=STOPS)
    ] = []
    stop_token_ids: Annotated[list[int], Field(max_length=STOP_TOKENS)] = []
    ignore_eos: bool = False
    """If true, only `stop` and `stop_token_ids` end a text before `max_tokens`."""
    choices: Annotated[list[str], Field(min_length=1, max_length=CHOICES), AfterValidator(_limit_choices)] | None = None
    """Texts one of which the answer must be, cut at a stop string."""
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool | None] = {}
    """The second is without effect: padding hides the lengths of pieces from who reads encrypted traffic."""
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
        return self.return_token_ids or not (self.logprobs is None or self.logprobs is False)

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
            raise Refusal(400, f"n times the number of prompts is more than {ANSWERS}.", "n")
        if self.with_tokens and (self.stream or self.choices):
            field = "return_token_ids" if self.return_token_ids else "logprobs"
            raise Refusal(400, f"{field} is not supported in streams, nor with choices.", field)
        return self


class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    messages: Annotated[
        list[RequestMessage], Field(min_length=1, max_length=MESSAGES), AfterValidator(_one_system_message)
    ]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        return [Chat(self.messages)]

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = "max_completion_tokens differs from max_tokens, which is its older name."
            raise Refusal(400, message, "max_completion_tokens")
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
    prompt: Annotated[list[Any], BeforeValidator(_prompts)]
    max_tokens: Count = 16
    echo: bool = False
    logprobs: Literal[0] | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        return self.prompt

    @model_validator(mode="after")
    def _echoes_text(self) -> Self:
        if self.echo and not all(isinstance(prompt, str) for prompt in self.prompt):
            raise Refusal(400, "echo is not supported for a prompt in token ids.", "echo")
        return self

    def echoed(self, number: int) -> str:
        prompt = self.prompt[number // self.n]
        return prompt if self.echo else ""


def prompt_tokens(model: ChatTokenizer, prompt: Prompt) -> list[int]:
    """Return a prompt in tokens.

    Raises Refusal if it is too long for the context or empty, has a token outside the vocabulary, which would fail
    every row of its pass, or is a chat that the model's chat template refuses.
    """
    if isinstance(prompt, list):
        tokens = prompt
    else:
        try:
            text = prompt if isinstance(prompt, str) else model.render([turn.model_dump() for turn in prompt.messages])
        except Exception as error:  # Chat templates are third-party programs and may raise anything.
            raise Refusal(400, f"The model's chat template refuses this: {error}.", "messages") from error
        if len(text) > model.longest_text:
            raise _too_long(model, f"more than {model.context_tokens}")
        tokens = model.encode_content(text) if isinstance(prompt, str) else model.encode(text)
    if not tokens:
        raise Refusal(400, "The prompt has no tokens, and at least one is needed.", "prompt")
    if not 0 <= min(tokens) <= max(tokens) < model.vocabulary:
        raise Refusal(400, f"Tokens of a prompt are 0 to {model.vocabulary - 1}.", "prompt")
    if len(tokens) >= model.context_tokens:
        raise _too_long(model, str(len(tokens)))
    return tokens


def _too_long(model: ChatTokenizer, count: str) -> Refusal:
    return Refusal(
        400,
        f"This model's maximum context length is {model.context_tokens} tokens. However, your messages resulted in "
        f"{count} tokens. Please reduce the length of the messages.",
    )


class AdapterRequest(_Body):
    """A request to load or unload an adapter, in vLLM's form."""

    lora_name: str
    lora_path: Path = Path()
