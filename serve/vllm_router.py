"""Answers written by vLLM servers that hold one base and the same adapters.

No answer comes from another adapter than the one that was asked for:

1. An adapter gets a name that none had before: vLLM keeps cached prompts by name, and refuses a name that is loaded.
2. It is loaded from a copy that does not change: vLLM reads an adapter again once it has dropped it.
3. Its name is served only after every server has answered under it, over several new connections, and all agree.
4. An answer under another name than the one that was asked for is dropped.
5. Where a server has lost an adapter, health checks fail. The restart that follows loads all adapters again.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from retroformer.endpoint.agreement import PROBE_TOKENS, PROBES, TOLERANCE, Drawn, LogProbs, disagreement
from retroformer.endpoint.http_client import Answer, NoAnswer, fetch, fetch_now
from retroformer.endpoint.request_guard import Refusal
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, ServiceError
from retroformer.models.precision import serving_dtype
from retroformer.run.provenance import folder_sha256

from .adapters import ServedModels, Target
from .answers import Answers, seeds
from .engine.chat_tokenizer import ChatTokenizer
from .engine.generation import Output
from .engine.model import BASE
from .engine.sampling import GREEDY_BELOW
from .requests import GenerationRequest, prompt_tokens
from .served_names import VllmAddresses, WorkerSettings
from .supervisor import HEALTH, PROBE_PAUSE_SECONDS, PROBE_SECONDS

BASE_NAME = "base"
"""vLLM's name of the base: `--served-model-name base`."""
ANSWER_SECONDS = 900.0
LOAD_SECONDS = 300.0
LISTINGS = 16
"""Number of connections to each address over which an adapter must be listed."""
ATTEMPTS = 5
"""Number of times that an adapter is loaded at the start, each time under a new name, until all servers have it."""
NAME_EACH = "see that all serve train.base_model, and name each of them in serve.vllm.replicas"
LEAST_TOP_P = 1e-6
"""vLLM refuses 0, with which the likeliest token is taken."""


class _RoutedChoice(BaseModel):
    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int]
    logprobs: LogProbs | None = None

    def output(self, prompt_tokens: int) -> Output:
        log_probs = tuple(self.logprobs.token_logprobs) if self.logprobs else ()
        tokens = tuple(self.token_ids) if self.logprobs else ()
        return Output(self.text, self.finish_reason, prompt_tokens, len(self.token_ids), "", tokens, log_probs)


class _RoutedAnswer(BaseModel):
    model: str
    choices: list[_RoutedChoice]


class VllmServers:
    """vLLM servers, and the adapters that they all hold."""

    def __init__(self, addresses: VllmAddresses, quantization: str, probe: Sequence[int]) -> None:
        """Prepare for servers whose base has this quantisation; `probe` is the prompt on which they are compared."""
        self.quantization = quantization
        self._urls, self._probe = addresses.urls, list(probe)
        self._headers = {"Authorization": f"Bearer {addresses.key}"}
        self._loaded = set[str]()
        self._in_use, self._busy = Counter[str](), Counter[str]()
        self.healthy = True
        """False if a server does not answer, or has lost an adapter."""

    def wait(self) -> None:
        """Wait until all servers answer."""
        for url in self._urls:
            while True:
                with suppress(ServiceError):
                    self._call("GET", url, HEALTH)
                    break
                time.sleep(1)

    def require_base(self, folder: Path, name: str) -> int:
        """Return the longest text of the servers, in tokens. Raises ConfigError if one serves another base."""
        lengths = []
        for url in self._urls:
            card = self._cards(url).get(BASE_NAME, {})
            root = str(card.get("root"))
            if root != name and not (Path(root).is_dir() and folder_sha256(Path(root)) == folder_sha256(folder)):
                raise ConfigError(
                    f"The vLLM server at {SecretUrl(url)} serves {root!r} as {BASE_NAME!r}, and not train.base_model: "
                    f"start it with `vllm serve {folder} --served-model-name {BASE_NAME}`."
                )
            lengths.append(int(card["max_model_len"]))
        return min(lengths)

    @property
    def version(self) -> str:
        """Version of the first server."""
        answer = self._call("GET", self._urls[0], "/version")
        return str(json.loads(answer.content).get("version"))

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` into all servers under a name that is new to them.

        Raises ServiceError if a server refuses it, or answers under its name in another way than the others.
        """
        body = {"lora_name": name, "lora_path": str(folder.resolve())}
        try:
            for url in self._urls:
                self._call("POST", url, "/v1/load_lora_adapter", LOAD_SECONDS, body)
            self._require_agreement(name)
        except ServiceError:
            self._unload(name)
            raise
        self._loaded.add(name)

    def unload_adapter(self, name: str) -> None:
        self._loaded.discard(name)
        self._unload(name)

    def uses_adapter(self, adapter: str) -> bool:
        """Return True if answers of this adapter are being written."""
        return self._in_use[adapter] > 0

    async def complete(self, body: Mapping[str, Any]) -> list[_RoutedChoice]:
        """Return the texts that the least busy server writes. Raises Refusal if they are not of the model asked for."""
        name, url = body["model"], min(self._urls, key=self._busy.__getitem__)
        self._in_use[name] += 1
        self._busy[url] += 1
        try:
            completion = await self._completion(url, body)
        finally:
            self._in_use[name] -= 1
            self._busy[url] -= 1
        if completion.model != name:
            what = f"answered as {completion.model[:200]!a} where {name!r} was asked for: ask again"
            raise Refusal(503, _at(url, what))
        return completion.choices

    async def _completion(self, url: str, body: Mapping[str, Any]) -> _RoutedAnswer:
        try:
            answer = await fetch("POST", f"{url}/v1/completions", ANSWER_SECONDS, headers=self._headers, json=body)
        except NoAnswer as error:
            raise Refusal(503, _at(url, error)) from None
        if answer.status == 404 and body["model"] in self._loaded:
            self.healthy = False
        if answer.status != 200:
            raise Refusal(400 if answer.status == 400 else 503, _refused(url, answer))
        try:
            return _RoutedAnswer.model_validate_json(answer.content)
        except ValidationError:
            raise Refusal(503, _at(url, "answered with no finished text")) from None

    def watch(self) -> None:
        """Keep checking whether every server answers and has all adapters."""
        while True:
            time.sleep(PROBE_PAUSE_SECONDS)
            names = {BASE_NAME, *self._loaded}
            try:
                lost = [name for url in self._urls for name in names - self._cards(url).keys()]
            except ServiceError:
                self.healthy = False
            else:
                self.healthy = not self._loaded.intersection(lost) and BASE_NAME not in lost

    def _require_agreement(self, name: str) -> None:
        body = {"model": name, "prompt": self._probe, "max_tokens": PROBE_TOKENS, "temperature": 0, "ignore_eos": True}
        body |= {"logprobs": 0, "return_token_ids": True}
        # Each exchange has a connection of its own: an address may be that of several servers.
        for url in (url for url in self._urls for _ in range(LISTINGS)):
            if name not in self._cards(url):
                raise ServiceError(_at(url, f"has not loaded {name!r} everywhere: {NAME_EACH}"))
        first: Drawn = []
        for url in (url for url in self._urls for _ in range(PROBES)):
            answer = self._call("POST", url, "/v1/completions", LOAD_SECONDS, body)
            try:
                completion = _RoutedAnswer.model_validate_json(answer.content)
                (output,) = (choice.output(0) for choice in completion.choices)
            except ValueError:
                raise ServiceError(_at(url, "answered with no finished text")) from None
            drawn = list(zip(output.tokens, output.log_probs, strict=True))
            first = first or drawn
            if completion.model != name or not drawn or not disagreement(first, drawn) <= TOLERANCE:
                raise ServiceError(_at(url, f"does not answer with {name!r} as the others do: {NAME_EACH}"))

    def _cards(self, url: str) -> dict[str, dict[str, Any]]:
        """Return what a server says about its models, by name."""
        answer = self._call("GET", url, "/v1/models")
        try:
            return {card["id"]: card for card in json.loads(answer.content)["data"]}
        except (ValueError, KeyError, TypeError):
            raise ServiceError(_at(url, f"lists no models: {answer.text[:200]!r}")) from None

    def _unload(self, name: str) -> None:
        for url in self._urls:
            with suppress(ServiceError):
                self._call("POST", url, "/v1/unload_lora_adapter", PROBE_SECONDS, {"lora_name": name})

    def _call(self, method: str, url: str, path: str, seconds: float = PROBE_SECONDS, body: Any = None) -> Answer:
        try:
            answer = fetch_now(method, f"{url}{path}", seconds, headers=self._headers, json=body)
        except NoAnswer as error:
            raise ServiceError(_at(url, error)) from None
        if answer.status != 200:
            raise ServiceError(_refused(url, answer))
        return answer


def _at(url: str, what: object) -> str:
    return f"The vLLM server at {SecretUrl(url)} {what}."


def _refused(url: str, answer: Answer) -> str:
    return _at(url, f"answered {answer.status}: {answer.text[:300]}")


class VllmAnswers(Answers):
    """Answers requests with vLLM servers. A stream arrives whole, once its text is known to be of the right adapter."""

    def __init__(self, model: ChatTokenizer, served: ServedModels, servers: VllmServers) -> None:
        super().__init__(model, served)
        self._servers = servers

    @property
    def healthy(self) -> bool:
        return self._servers.healthy

    async def _generate(self, request: GenerationRequest, target: Target) -> AsyncGenerator[dict[int, Output], None]:
        if request.choices is not None:
            raise Refusal(400, "choices: not supported with serve.engine=vllm.", "choices")
        bodies = await asyncio.to_thread(self._bodies, request, target)
        answers = await asyncio.gather(*map(self._servers.complete, bodies))
        outputs = (
            # Without randomness vLLM writes only one answer.
            [choice.output(len(body["prompt"])) for choice in choices] * (request.n // len(choices))
            for body, choices in zip(bodies, answers, strict=True)
        )
        yield dict(enumerate(chain.from_iterable(outputs)))

    def _bodies(self, request: GenerationRequest, target: Target) -> list[dict[str, Any]]:
        """Return a request to vLLM for each prompt. Raises Refusal."""
        greedy = request.temperature < GREEDY_BELOW
        common = request.model_dump(include={"presence_penalty", "frequency_penalty", "top_k"})
        common |= {
            "model": BASE_NAME if target.adapter == BASE else target.adapter,
            "n": 1 if greedy else request.n,
            "temperature": 0 if greedy else request.temperature,
            "top_p": max(request.top_p, LEAST_TOP_P),
            "stop": [text for text in request.stop if text],
            "stop_token_ids": sorted(self._ends(request)),
            # The ends of training are given, so that vLLM adds none of its own.
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 0 if request.with_tokens else None,
            "seed": seeds(request.seed, 0, 1)[0],
        }
        bodies = []
        for prompt in request.prompts:
            tokens = prompt_tokens(self.model, prompt)
            bodies.append(common | {"prompt": tokens, "max_tokens": self._limit(request, tokens)})
        return bodies


def _load(served: ServedModels, name: str, folder: Path) -> str:
    for _ in range(ATTEMPTS - 1):
        with suppress(ServiceError):
            return served.load(name, folder)[0]
    return served.load(name, folder)[0]


def connect(
    settings: WorkerSettings, addresses: VllmAddresses, base: Path, targets: Mapping[str, Target]
) -> VllmAnswers:
    """Wait for the servers, and load the adapters of `targets` into them.

    Raises ServiceError if they do not take an adapter, ConfigError if they serve another base.
    """
    import torch

    tokenizer = ChatTokenizer(base, settings.chat_template_kwargs)
    servers = VllmServers(addresses, settings.names.quantization, tokenizer.encode_content("You failed. Next time, I"))
    servers.wait()
    tokenizer.context_tokens = min(tokenizer.context_tokens, servers.require_base(base, settings.base_model))
    dtype = serving_dtype(settings.dtype, base, torch)
    served = ServedModels(servers, servers.uses_adapter, targets, dtype, {"vllm": servers.version})
    for name, folder in settings.names.adapters.items():
        adapter = _load(served, name, folder)
        its = {
            model_name: target._replace(adapter=adapter)
            for model_name, target in targets.items()
            if target.adapter == str(folder)
        }
        served.replace((), its)
    threading.Thread(target=servers.watch, name="vLLM", daemon=True).start()
    return VllmAnswers(tokenizer, served, servers)
