"""One door to every language model: the OpenAI protocol, chat or completions, with accounts.

A call that fails for good raises EndpointFailure; what it means for the rollout is the caller's business. What a call
has cost is in its completion, in the failure (`failure.usage`), or in the exception of a call that was cancelled
(`retroformer.errors.usage_of`).
"""

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from retroformer.config import Endpoint
from retroformer.endpoint_call import Call
from retroformer.errors import ConfigError, EndpointFailure
from retroformer.own_server import choices_field, seed_field
from retroformer.records import Message, Record, Usage
from retroformer.redaction import keep_secret, redacted
from retroformer.secret_url import SecretUrl

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Prompt = str | tuple[Message, ...]

_MOST_TOKENS = 10_000_000
"""Of a prompt or a completion. No model takes so many: a server that reports more does not count tokens."""


class Completion(Record):
    """What a model wrote, and what it consumed."""

    text: str
    usage: Usage


class LanguageModel:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: Endpoint, base_url: str, model: str | None = None) -> None:
        self.endpoint = endpoint
        self.base_url = SecretUrl(base_url)
        self.model = model or endpoint.model
        self._client: AsyncOpenAI | None = None

    async def complete(
        self,
        prompt: Prompt,
        *,
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        seed: int | None = None,
        choices: Sequence[str] | None = None,
    ) -> Completion:
        """Text that continues a plain prompt or answers a chat; with `choices` it is one of them, cut at a stop string.

        Raises:
            ConfigError: choices are for the experiment's own server, and this is another; or base_url is no address.
            EndpointFailure: refused, timed out, or answered what is not a completion, after the client's retries.
        """
        fields = self._fields(seed, choices)
        path, body = self._request(prompt, temperature, max_new_tokens, [*stop, *fields], seed)
        call = self._call(path, body)
        return self._read(await call.answer(), body, call.lost)

    async def post(self, path: str, body: dict[str, Any]) -> object:
        """What the endpoint answers to `body`, JSON or text, after the client's retries.

        Raises:
            EndpointFailure: refused, timed out, or not understood, and retries did not help.
        """
        return await self._call(path, body).answer()

    def _fields(self, seed: int | None, choices: Sequence[str] | None) -> list[str]:
        """What only the experiment's own server understands."""
        if self.endpoint.base_url is not None:
            if choices is not None:
                raise ConfigError(
                    f"The model {self.model!r} at {self.base_url} cannot be held to choices: only the experiment's own "
                    "server can, so leave base_url out."
                )
            return []
        seeds = [] if seed is None else [seed_field(seed)]
        return seeds if choices is None else [*seeds, choices_field(choices)]

    def _request(
        self, prompt: Prompt, temperature: float, tokens: int, stop: list[str], seed: int | None
    ) -> tuple[str, dict[str, Any]]:
        common: dict[str, Any] = {"model": self.model, "temperature": temperature, "max_tokens": tokens}
        if stop:
            common["stop"] = stop
        if seed is not None:
            common["seed"] = seed
        if self.endpoint.api == "chat":
            turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
            return "/chat/completions", common | {"messages": [turn.model_dump() for turn in turns]}
        text = prompt if isinstance(prompt, str) else "\n".join(turn.content for turn in prompt)
        return "/completions", common | {"prompt": text}

    def _call(self, path: str, body: dict[str, Any]) -> Call:
        lost_answer = self._priced(_prompt_tokens(body), 0)
        return Call(self._connected(), path, body, self.endpoint.timeout_seconds, lost_answer, self._sentence)

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            from openai import AsyncOpenAI

            from retroformer.bounded_client import BoundedClient

            key = os.environ.get(self.endpoint.api_key_env) or "none"
            keep_secret(key)
            address, _, query = self._address().partition("?")
            self._client = AsyncOpenAI(
                base_url=address,
                # The library puts paths behind the query of its base_url.
                default_query=dict(parse_qsl(query, keep_blank_values=True)) or None,
                api_key=key,
                # Retries and the limit in time are those of Call.
                max_retries=0,
                timeout=None,
                http_client=BoundedClient(timeout=None),
            )
        return self._client

    def _address(self) -> str:
        """Raises ConfigError: it is no address."""
        address = self.base_url.secret_url()
        with contextlib.suppress(ValueError):
            if address.isprintable() and (urlsplit(address).port or True):
                return address
        # What is wrong is not said: it may be a part of a password.
        raise ConfigError(
            f"{str(self.base_url)!r} is no address of a model (base_url): write it as in http://127.0.0.1:8000/v1, and "
            "special characters of a password as %40, %2F and so on."
        )

    def _read(self, answer: object, body: dict[str, Any], lost: Usage) -> Completion:
        """Any JSON or text may be inside; `lost` is what the call has cost before this answer."""
        page = answer if isinstance(answer, dict) else {}
        choices = page.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message") if self.endpoint.api == "chat" else choice
        text = message.get("content" if self.endpoint.api == "chat" else "text") if isinstance(message, dict) else None
        usage = page.get("usage")
        reported = usage if isinstance(usage, dict) else {}
        if not isinstance(text, str):
            # What reports no tokens is hardly a model's answer: it counts as a call, and as nothing else.
            paid = self._usage(reported, body, "") if reported else Usage(calls=1)
            what = f"answered what is not a completion: {beginning(answer)!r}"
            raise EndpointFailure(self._sentence(what), usage=lost + paid)
        text = _encodable(text)
        return Completion(text=text, usage=lost + self._usage(reported, body, text))

    def _usage(self, reported: dict[str, object], body: dict[str, Any], text: str) -> Usage:
        prompt_tokens, completion_tokens = (
            _plausible(reported.get(name)) for name in ("prompt_tokens", "completion_tokens")
        )
        if prompt_tokens is None or completion_tokens is None:
            # A server that reports nothing must not make the budget endless.
            prompt_tokens, completion_tokens = _prompt_tokens(body), _about_tokens(len(text))
        return self._priced(prompt_tokens, completion_tokens)

    def _priced(self, prompt_tokens: int, completion_tokens: int) -> Usage:
        """One call."""
        price_in, price_out = self.endpoint.dollars_per_million
        dollars = (prompt_tokens * price_in + completion_tokens * price_out) / 1e6
        return Usage(calls=1, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, dollars=dollars)

    def _sentence(self, what: str) -> str:
        return f"The model {self.model!r} at {self.base_url} {_encodable(what).removesuffix('.')}."

    async def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            await self._client.close()


def _plausible(count: object) -> int | None:
    """A number of tokens, where it is one."""
    return count if type(count) is int and 0 <= count <= _MOST_TOKENS else None


def _prompt_tokens(body: dict[str, Any]) -> int:
    """About as many as a request asks the model to read."""
    prompt = body.get("prompt", "")
    if isinstance(prompt, list):
        return len(prompt)  # In token ids.
    return _about_tokens(len(prompt) + sum(len(turn["content"]) for turn in body.get("messages", ())))


def _about_tokens(characters: int) -> int:
    """Four characters are about a token."""
    return characters // 4 + 1


def beginning(answer: object) -> str:
    """Of an answer, for a sentence; without secrets, of which half would not be known again."""
    try:
        return redacted(str(answer))[:200]
    except RecursionError:
        return "JSON that is nested too deeply"


def _encodable(text: str) -> str:
    """JSON may hold halves of characters, which no file, database or request takes."""
    return text.encode("utf-8", "replace").decode()
