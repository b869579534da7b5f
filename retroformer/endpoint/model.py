"""Client of a language model over the OpenAI protocol, chat or completions, with an account of its cost.

The cost of a call is in its completion, in its failure (`failure.usage`), or in the exception of a cancelled call
(`retroformer.errors.usage_of`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from retroformer.config.sections.base import WHOLE_DISTRIBUTION, Endpoint
from retroformer.endpoint.answers import first_choice, read_response, strip_thinking, token_counts
from retroformer.endpoint.retries import ModelAddress, Pace, RetriedRequest
from retroformer.endpoint.secrets.redaction import redact
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, EndpointFailure
from retroformer.method.records import DrawnToken, FinishReason, Message, Record, Usage

Prompt = str | tuple[Message, ...]

_TOKEN_FIELDS = {"logprobs": True, "return_token_ids": True, **WHOLE_DISTRIBUTION}
_TOKENS = TypeAdapter(Annotated[tuple[DrawnToken, ...], Field(min_length=1)], config=ConfigDict(allow_inf_nan=False))


class Completion(Record):
    """Answer that a model wrote, without its thinking, and its usage."""

    text: str
    usage: Usage
    finish_reason: FinishReason | None = None
    """None if the server does not say why the text ends; `length` for any end that is not the model's own."""
    drawn: tuple[DrawnToken, ...] | None = None
    """Tokens of the text; None unless they were asked for."""


class LanguageModel:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: Endpoint, base_url: str | SecretUrl, paces: dict[str, Pace] | None = None) -> None:
        """Prepare connections to `base_url` and to `endpoint.replicas`; `paces` are shared by all of one event loop."""
        self.endpoint = endpoint
        self.base_url = SecretUrl(base_url)
        self.model = endpoint.model
        self._paces = {} if paces is None else paces
        self._servers: list[ModelAddress] = []

    async def complete(
        self,
        prompt: Prompt,
        *,
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        seed: int | None = None,
        choices: Sequence[str] | None = None,
        tokens: bool = False,
    ) -> Completion:
        """Continue a plain prompt or answer a chat. With `choices`, the text is one of them, cut at a stop string.

        With `tokens`, the server must also return the token ids of an answer to a chat, and their log-probabilities.

        Raises:
            ConfigError: `choices` are given but this is not the experiment's own server.
            EndpointFailure: after all retries the call was refused, timed out, or did not return a completion.
        """
        path, body = self._request(prompt, temperature, max_new_tokens, stop, seed)
        if choices is not None:
            if self.endpoint.base_url is not None:
                raise ConfigError(
                    f"The model {self.model!r} at {self.base_url} cannot be held to choices: only the experiment's own "
                    "server can, so leave base_url out."
                )
            body["choices"] = list(choices)
        answer, completion = await self._ask(path, body | (_TOKEN_FIELDS if tokens else {}))
        if not tokens:
            return completion
        return completion.model_copy(update={"drawn": self._tokens_of(answer, completion.usage)})

    async def converse(
        self,
        turns: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int | None = None,
    ) -> tuple[dict[str, Any], Usage]:
        """Answer a conversation with tools; return the assistant's message as it came, and its usage.

        Raises EndpointFailure if after all retries the call was refused, timed out, or did not return a message.
        """
        _, body = self._request((), temperature, max_new_tokens, [], seed)
        body |= {"messages": list(turns)} | ({"tools": list(tools)} if tools else {})
        answer, completion = await self._ask("/chat/completions", body)
        return dict(read_response(answer).message), completion.usage

    async def post(self, path: str, body: dict[str, Any]) -> object:
        """Post `body` and return the endpoint's response, JSON or text, after the client's retries.

        Raises EndpointFailure if after all retries the call was refused, timed out, or returned an unreadable response.
        """
        return await self._call(path, body).answer()

    def _request(
        self, prompt: Prompt, temperature: float, tokens: int, stop: Sequence[str], seed: int | None
    ) -> tuple[str, dict[str, Any]]:
        common: dict[str, Any] = {"model": self.model, "temperature": temperature, "max_tokens": tokens}
        if stop:
            common["stop"] = list(stop)
        if seed is not None:
            common["seed"] = seed
        if self.endpoint.api == "chat":
            turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
            return "/chat/completions", self._apply_extra_body(
                common | {"messages": [turn.model_dump() for turn in turns]}
            )
        text = prompt if isinstance(prompt, str) else "\n".join(turn.content for turn in prompt)
        return "/completions", self._apply_extra_body(common | {"prompt": text})

    def _apply_extra_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the fields of the config to a request, and remove those that the config sets to null."""
        return {name: value for name, value in (body | self.endpoint.extra_body).items() if value is not None}

    def _call(self, path: str, body: dict[str, Any]) -> RetriedRequest:
        """Prepare a request with its retries. Raises ConfigError if the environment names no usable key or proxy."""
        if not self._servers:
            self._servers = [self._server(address) for address in (self.base_url, *self.endpoint.replicas)]
        lost_answer = self._price(_prompt_tokens(body), 0)
        return RetriedRequest(self._servers, path, body, self.endpoint.timeout_seconds, lost_answer, self._sentence)

    async def _ask(self, path: str, body: dict[str, Any]) -> tuple[object, Completion]:
        """Return the response, and the completion in it. Raises ConfigError, EndpointFailure."""
        call = self._call(path, body)
        answer = await call.answer()
        return answer, self._read(answer, body, call.lost)

    def _server(self, base_url: SecretUrl) -> ModelAddress:
        from retroformer.endpoint.http_client import http_client, read_key

        key = read_key(self.endpoint.api_key_env) or "none"
        # A user and password in the address replace the key.
        client = http_client(base_url.secret_url(), {"Authorization": f"Bearer {key}"}, timeout=None)
        return ModelAddress(base_url, client, self._paces.setdefault(str(base_url), Pace()))

    def _read(self, answer: object, body: dict[str, Any], lost: Usage) -> Completion:
        """Read a completion from a response, which may be any JSON or text; `lost` is the cost of earlier attempts."""
        response = read_response(answer)
        if response.text is None:
            # A response without token counts is hardly a model's answer: it counts as a call without tokens.
            paid = self._usage(response.usage, body, "") if response.usage else Usage(calls=1)
            what = f"answered with something that is not a completion: {beginning(answer)!r}"
            raise EndpointFailure(self._sentence(what), usage=lost + paid)
        text = _replace_surrogates(response.text)
        return Completion(
            text=strip_thinking(text),
            usage=lost + self._usage(response.usage, body, text),
            finish_reason=response.finish_reason,
        )

    def _tokens_of(self, answer: object, usage: Usage) -> tuple[DrawnToken, ...]:
        """Return the tokens of an answer to a chat. Raises EndpointFailure if there are none."""
        choice = first_choice(answer)
        noted = choice.get("logprobs")
        content = noted.get("content") if isinstance(noted, dict) else None
        try:
            log_probs = [entry["logprob"] for entry in content or ()]
            return _TOKENS.validate_python(list(zip(choice["token_ids"], log_probs, strict=True)))
        except (KeyError, TypeError, ValueError):
            what = "answered without token ids and the log-probability of each, which train.grpo.reward=stored needs"
            raise EndpointFailure(self._sentence(what), usage=usage) from None

    def _usage(self, reported: Mapping[str, object], body: dict[str, Any], text: str) -> Usage:
        prompt, completion = token_counts(reported)
        if prompt is not None and completion is not None:
            return self._price(prompt, completion)
        # Estimate the tokens: a server that reports none must not bypass the budget.
        return self._price(_prompt_tokens(body), _about_tokens(len(text)))

    def _price(self, prompt_tokens: int, completion_tokens: int) -> Usage:
        """Return the usage of one call with its price."""
        dollars = self.endpoint.dollars(prompt_tokens, completion_tokens)
        return Usage(calls=1, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, dollars=dollars)

    def _sentence(self, what: str, address: SecretUrl | None = None) -> str:
        return f"The model {self.model!r} at {address or self.base_url} {_replace_surrogates(what).removesuffix('.')}."

    async def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.client.aclose()


def _prompt_tokens(body: dict[str, Any]) -> int:
    """Estimate the number of prompt tokens of a request."""
    prompt = body.get("prompt", "")
    if isinstance(prompt, list):
        return len(prompt)  # The prompt is a list of token ids.
    turns = body.get("messages", ())
    parts = [turn.get(name) for turn in turns for name in ("content", "tool_calls")] + [body.get("tools")]
    texts = (part if isinstance(part, str) else json.dumps(part) for part in parts if part)
    return _about_tokens(len(prompt) + sum(map(len, texts)))


def _about_tokens(characters: int) -> int:
    """Estimate the number of tokens of a text at four characters per token."""
    return characters // 4 + 1


def beginning(answer: object) -> str:
    """Return the beginning of a response for a message. Secrets are hidden before it is cut."""
    try:
        return redact(str(answer))[:200]
    except RecursionError:
        return "JSON that is nested too deeply"


def _replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which JSON may hold but no file, database or request accepts."""
    return text.encode("utf-8", "replace").decode()
