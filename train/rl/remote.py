"""Responses sampled by a server instead of the training process: vLLM, or `retroformer serve` with serve.hand_over.

In each update:

1. The policy's adapter is saved, and loaded into each server under a new name, so that nothing that a server caches by
   name, weights or prompt prefixes, can belong to an earlier policy.
2. Several new connections to each address give the likeliest next tokens: an address may hide servers that have not
   loaded the adapter.
3. Prompts are sent, and responses come back, as token ids: no text is tokenised twice. Each prompt has its own seed.
4. Two checks end the stage at wrong weights. `retroformer serve` returns the sha256 of the adapter's files that it has
   read; vLLM returns none. And the server's log-probabilities of the sampled tokens must be close to the policy's,
   see `TOLERANCE`. So with vLLM, only the new name prevents small changes from being sampled with stale weights.
5. The adapter is unloaded.

Training uses the policy's own log-probabilities of the sampled tokens. Where the server's differ, within the tolerance,
the loss of a token is weighted by `train.rl.rewards` (Yao et al., Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training, 2025).

Seeds depend only on the run's seed and the update. So a resumed run repeats an unbroken one if the server's answer to a
request does not depend on its other work: `retroformer serve` in float32 on a CPU guarantees that, vLLM with
VLLM_BATCH_INVARIANT=1.
"""

import asyncio
import contextlib
import itertools
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field

from retroformer.config.sections.base import WHOLE_DISTRIBUTION, Endpoint
from retroformer.config.sections.train import Generation
from retroformer.endpoint.agreement import PROBE_TOKENS, PROBES, TOLERANCE, Drawn, LogProbs, disagreement
from retroformer.endpoint.model import LanguageModel, beginning
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import EndpointFailure, ProvenanceError
from retroformer.models.precision import Quantization
from retroformer.run.provenance import folder_sha256

from .. import processes
from ..losses import k3, masked_mean
from ..stage import Stage
from .policy import SharedBase
from .rewards import truncated_weights
from .sampling import NO_TOKEN, Respond, Responses, SamplingSettings, ended_responses, padded, policy_log_probs, respond

TIMEOUT_SECONDS = 600.0
"""Time limit of a response, its wait behind the others of its update included."""
SEEDS = 2**31
SAMPLING_REQUEST = {
    "temperature": 1.0,
    **WHOLE_DISTRIBUTION,
    "ignore_eos": True,
    "logprobs": 0,
    "return_token_ids": True,
}
"""Sampling settings of every request, since a server may take other defaults from the model's generation_config.json.
Only the end of a turn ends a response, as in training."""


def responder(stage: Stage) -> Respond:
    """Return the sampler of a stage: a server if `generation` is set, else this process."""
    name, train = f"{stage.experiment.run}-{stage.name}", stage.experiment.train
    if train.generation is None:
        return respond
    return RemoteSampler(train.generation, name, stage.checkpoints, train.quantization)


class RemoteSampler:
    """Samples responses of the policy by the server that a config names."""

    def __init__(
        self,
        settings: Generation,
        name: str,
        folder: Path,
        quantization: Quantization = "none",
        tolerance: float = TOLERANCE,
    ) -> None:
        """Hand adapters over in `folder`, under names that begin with `name`.

        `quantization` is that of the weights that are trained.
        """
        self._settings, self._name, self._folder, self._tolerance = settings, name, folder, tolerance
        self._quantization = quantization
        self.identity: dict[str, str] = {"base_url": str(settings.base_url)}
        """The server, in the process that asks it; `retroformer serve` adds the sha256 of its base, and its dtype."""

    def __call__(self, model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> Responses:
        """Sample one response to each prompt; `facts` compares the server's log-probabilities with the policy's.

        Raises:
            EndpointFailure: the server does not load the adapter, or does not respond.
            ProvenanceError: the server has read other weights, or samples with others.
        """
        # One process asks the server, and sends the responses to the others.
        (drawn,) = processes.each([prompts], lambda all_prompts: self._drawn(model, all_prompts, draw))
        response_BT = padded([[token for token, _ in response] for response in drawn], NO_TOKEN, model.device)
        responses = ended_responses(prompts, response_BT, draw)
        server_log_probs_BT = padded([[log_prob for _, log_prob in response] for response in drawn], 0.0, model.device)
        mask_BT, server_log_probs_BT = responses.mask_BT, server_log_probs_BT * responses.mask_BT
        mine_BT = policy_log_probs(model, responses, draw.micro_batch_tokens)
        distance = float(masked_mean((mine_BT - server_log_probs_BT).abs(), mask_BT))
        if not distance <= self._tolerance:
            raise ProvenanceError(
                f"The server at {self._settings.base_url} did not sample with the current policy: its "
                f"log-probabilities are {distance:.3f} nats from the policy's own (mean over {int(mask_BT.sum())} "
                f"tokens), and {self._tolerance:g} is allowed. See that it serves "
                "train.base_model as it is trained and that it alone answers at this address, or train without "
                "`generation`."
            )
        server_kl = float(masked_mean(k3(server_log_probs_BT, mine_BT), mask_BT))
        return responses._replace(
            facts={"server_distance": distance, "server_kl": server_kl},
            importance_BT=truncated_weights(mine_BT, server_log_probs_BT),
        )

    def _drawn(self, model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> list[Drawn]:
        seeds: list[int] = torch.randint(SEEDS, (len(prompts),)).tolist()
        folder = (self._folder / f"{self._name}-{secrets.token_hex(4)}").resolve()
        folder.mkdir(parents=True)
        try:
            model.save_policy(folder)
            requests = [
                {
                    **SAMPLING_REQUEST,
                    "model": folder.name,
                    "prompt": prompt,
                    "seed": seed,
                    "max_tokens": draw.max_new_tokens,
                    "stop_token_ids": list(draw.ends),
                }
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]
            return asyncio.run(self._answers(folder, requests, model.vocabulary))
        finally:
            shutil.rmtree(folder)

    async def _answers(self, folder: Path, requests: Sequence[dict[str, Any]], vocabulary: int) -> list[Drawn]:
        """Send all requests, with the adapter in `folder` loaded."""
        server = self._model(folder.name, self._settings.base_url, self._settings.replicas)
        try:
            saved = folder_sha256(folder)
            async with contextlib.AsyncExitStack() as stack:
                for address in (self._settings.base_url, *self._settings.replicas):
                    await stack.enter_async_context(self._loaded_at(address, folder, saved))
                await self._require_agreement(folder.name, requests[0], vocabulary)
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(_draw(server, request, vocabulary)) for request in requests]
            return [task.result() for task in tasks]
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, EndpointFailure):
                raise EndpointFailure(f"{first} When it works again, run the same command to resume.") from None
            raise first from None
        finally:
            await server.close()

    def _model(self, name: str, address: SecretUrl, replicas: Sequence[SecretUrl] = ()) -> LanguageModel:
        same: dict[str, Any] = {"api_key_env": self._settings.api_key_env, "timeout_seconds": TIMEOUT_SECONDS}
        return LanguageModel(Endpoint(**same, base_url=address, replicas=tuple(replicas), model=name), address)

    @contextlib.asynccontextmanager
    async def _loaded_at(self, address: SecretUrl, folder: Path, saved: str) -> AsyncIterator[None]:
        """Load the adapter in `folder`, whose sha256 is `saved`, into a server, and unload it at the end."""
        server = self._model(folder.name, address)
        try:
            try:
                answer = await server.post("/load_lora_adapter", {"lora_name": server.model, "lora_path": str(folder)})
            except EndpointFailure as failure:
                raise EndpointFailure(
                    f"The policy could not be handed over. {failure} Start a server there that reads "
                    f"{str(folder.parent)!r} and takes adapters (`retroformer serve` with serve.hand_over=true, or "
                    "vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1), and run the same command again."
                ) from failure
            try:
                self._require_the_files(address, answer, saved)
                yield
            finally:
                # It would take memory in the server, and is not used again.
                with contextlib.suppress(EndpointFailure):
                    await server.post("/unload_lora_adapter", {"lora_name": server.model})
        finally:
            await server.close()

    async def _require_agreement(self, name: str, request: dict[str, Any], vocabulary: int) -> None:
        """Ask for the likeliest next tokens over several new connections, which may reach several servers.

        Raises:
            EndpointFailure: one does not answer, for example because it has not loaded the adapter.
            ProvenanceError: two answers differ.
        """
        probe = request | {"temperature": 0.0, "max_tokens": min(PROBE_TOKENS, request["max_tokens"])}

        async def ask(address: SecretUrl) -> tuple[SecretUrl, Drawn]:
            server = self._model(name, address)
            try:
                return address, await _draw(server, probe, vocabulary)
            finally:
                await server.close()

        addresses = (self._settings.base_url, *self._settings.replicas)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(address)) for address in addresses for _ in range(PROBES)]
        pairs = itertools.combinations((task.result() for task in tasks), 2)
        for (address, drawn), (other, drawn_there) in pairs:
            if not (distance := disagreement(drawn, drawn_there)) <= self._tolerance:
                raise ProvenanceError(
                    f"The servers at {address} and {other} do not sample with the same policy: their "
                    f"log-probabilities of the likeliest next tokens differ by {distance:.3f} nats, and "
                    f"{self._tolerance:g} is allowed. See that all of them serve "
                    "train.base_model, and that each server is named in generation.replicas."
                )

    def _require_the_files(self, address: SecretUrl, answer: object, saved: str) -> None:
        """Raise ProvenanceError if the server has read other files than those with the sha256 `saved`."""
        reported = answer if isinstance(answer, dict) else {}
        read = reported.get("adapter_sha256")
        if read not in (None, saved):
            raise ProvenanceError(
                f"The server at {address} has not read the current policy: the sha256 of the saved "
                f"files is {saved[:12]}, and that of the files it has read is {str(read)[:12]}. See that it reads the "
                "disk that this process writes to, or train without `generation`."
            )
        served = reported.get("quantization")
        if served not in (None, self._quantization):
            raise ProvenanceError(
                f"The server at {address} samples with weights quantised as {served}, and the policy "
                f"is trained on {self._quantization}: start it with train.quantization={self._quantization}."
            )
        self.identity |= {name: str(reported[name]) for name in ("base_sha256", "dtype") if name in reported}


async def _draw(server: LanguageModel, request: dict[str, Any], vocabulary: int) -> Drawn:
    """Request one response. Raises EndpointFailure if token ids or log-probabilities are missing or invalid."""
    most = request["max_tokens"]
    answer = await server.post("/completions", request)
    try:
        choice = _Completion.model_validate(answer).choices[0]
        drawn = list(zip(choice.token_ids, choice.logprobs.token_logprobs, strict=True))
    except ValueError:
        what = f"answered without token ids and the log-probability of each: {beginning(answer)!r}"
        raise EndpointFailure(f"The server at {server.base_url} {what}.") from None
    if len(drawn) > most or not all(0 <= token < vocabulary for token in choice.token_ids):
        raise EndpointFailure(
            f"The server at {server.base_url} answered with {len(drawn)} tokens of at most {most}, with ids from "
            f"{min(choice.token_ids)} to {max(choice.token_ids)} for a vocabulary of {vocabulary}: see that it serves "
            "train.base_model."
        )
    if len(drawn) < most and not {*choice.token_ids[-1:]} & {*request["stop_token_ids"]}:
        raise EndpointFailure(
            f"The server at {server.base_url} ended a response after {len(drawn)} of {most} tokens, and "
            "not with the end of a turn: see that its longest text is train.max_length."
        )
    return drawn


class _Choice(BaseModel):
    token_ids: list[int]
    logprobs: LogProbs


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
