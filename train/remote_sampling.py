"""Responses that a server draws in place of the training process: vLLM, or `python -m serve` with serve.hand_over.

Before each update:

1. The policy's adapter is saved and handed over (`/v1/load_lora_adapter`). Its name is a new one each time: what a
   server keeps by names, weights and computed beginnings of prompts alike, cannot be those of an earlier policy.
2. Each prompt goes there in token ids, with a seed of its own, and what is drawn comes back in token ids, so that no
   text is read twice by tokenizers that may not agree. Temperature is 1 and nothing is left out of the distribution,
   which is said in full: a server may have other defaults in the model's generation_config.json.
3. Two checks see whether the weights have arrived; where one fails the stage ends:

   - **The files, exactly.** `python -m serve` answers with the sha256 of the adapter's files, taken before it reads
     them; it must be the one that they had when they were saved. This sees an earlier policy's files however little
     they differ, and not what becomes of them after that: a wrong base, a wrong type, a fault in the server. vLLM says
     no hash, so there this check is left out.
   - **The distribution, roughly.** The server's log-probabilities of what it drew are compared with the policy's own
     on every token, which costs a forward pass; their mean distance must not exceed `generation.tolerance`. This sees
     another base or quantisation, or an adapter that is ignored, if they matter by more than the tolerance. It does
     not see less: in bfloat16 rounding alone makes 0.03 to 0.05 nats, and a policy some updates old may be no further
     away than 0.1.

   So with vLLM nothing but the new name of each update keeps small changes from being drawn with stale weights.
4. The adapter is taken back.

A request that fails is repeated as all of this project's are (`retroformer.llm`). When that does not help the stage
ends, and no response is made up. What training is told of the drawn tokens is the policy's own opinion; that the
server rounds otherwise, within the tolerance, is not corrected.

Seeds depend on the run's seed and the update alone. So a resumed run repeats an unbroken one where the server answers
a request the same each time, whatever else it is doing: `python -m serve` in float32 does, vLLM needs
VLLM_BATCH_INVARIANT=1 for it.
"""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retroformer.config import Endpoint
from retroformer.errors import EndpointFailure, ProvenanceError
from retroformer.llm import LanguageModel, beginning
from retroformer.provenance import folder_sha256
from retroformer.train_sections import Generation, Grpo, Ppo
from train import processes
from train.losses import k3, masked_mean
from train.sampling import Draw, Respond, Responses, blocks, padded_responses, respond
from train.shared_base import SharedBase
from train.stage import Stage

Drawn: TypeAlias = list[tuple[int, float]]
"""The tokens of a response, each with the server's log-probability."""
SEEDS = 2**31
HOW = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "logprobs": 0,
    "return_token_ids": True,
}
"""What every request says. Other tokens that may end a turn are no end here, as they are none in training."""


def responder(stage: Stage, settings: Ppo | Grpo) -> Respond:
    """Who draws the responses of a stage."""
    if settings.generation is None:
        return respond
    return Server(settings.generation, f"{stage.experiment.run}-{stage.name}", stage.checkpoints)


def drawn_by(answer: Respond) -> dict[str, Any]:
    """For the metrics of a stage: the server that drew its last update; nothing where this process did."""
    return {"drawn_by": answer.identity} if isinstance(answer, Server) else {}


class Server:
    """Draws responses of the policy by the server that a page names."""

    def __init__(self, page: Generation, name: str, folder: Path) -> None:
        """Adapters are handed over in `folder`, under names that begin with `name`."""
        self._page, self._name, self._folder = page, name, folder
        self.identity: dict[str, str] = {"base_url": page.base_url}
        """Who drew last, in the process that asks: of `python -m serve` also the sha256 of its base, and its type."""

    def __call__(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
        """One response to each prompt; `facts` has how far the server's log-probabilities are from the policy's.

        Raises:
            EndpointFailure: the server does not take the adapter, or does not draw.
            ProvenanceError: it has read other weights, or draws with others.
        """
        # Of several processes one asks, and tells the others.
        (drawn,) = processes.each([prompts], lambda all_of: self._drawn(model, all_of, draw))
        response_BT = _padded([[token for token, _ in one] for one in drawn], draw.pad_id, model.device)
        responses = padded_responses(prompts, response_BT, draw)
        theirs_BT = _padded([[log_prob for _, log_prob in one] for one in drawn], 0.0, model.device)
        return responses._replace(facts=self._compared(model, responses, theirs_BT, draw.at_once))

    def _drawn(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> list[Drawn]:
        seeds: list[int] = torch.randint(SEEDS, (len(prompts),)).tolist()
        folder = (self._folder / f"{self._name}-{secrets.token_hex(4)}").resolve()
        folder.mkdir(parents=True)
        try:
            model.save_policy(folder)
            asked = [
                {
                    **HOW,
                    "model": folder.name,
                    "prompt": prompt,
                    "seed": seed,
                    "max_tokens": draw.max_new_tokens,
                    "stop_token_ids": [draw.eos_id],
                }
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]
            return asyncio.run(self._answers(folder, asked, model.vocabulary))
        finally:
            shutil.rmtree(folder)

    async def _answers(self, folder: Path, asked: Sequence[dict[str, Any]], vocabulary: int) -> list[Drawn]:
        """What is drawn with the adapter in `folder`."""
        told = self._page.model_dump(include={"base_url", "api_key_env", "timeout_seconds"})
        server = LanguageModel(Endpoint(**told), self._page.base_url, folder.name)
        try:
            async with self._handed_over(server, folder), asyncio.TaskGroup() as group:
                drawing = [group.create_task(_draw(server, one, vocabulary)) for one in asked]
            return [task.result() for task in drawing]
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, EndpointFailure):
                raise EndpointFailure(f"{first} When it draws again, run the same command to go on.") from None
            raise first from None
        finally:
            await server.close()

    @contextlib.asynccontextmanager
    async def _handed_over(self, server: LanguageModel, folder: Path) -> AsyncIterator[None]:
        """Within this the server answers to the adapter's name."""
        saved = folder_sha256(folder)
        try:
            answer = await server.post("/load_lora_adapter", {"lora_name": server.model, "lora_path": str(folder)})
        except EndpointFailure as failure:
            raise EndpointFailure(
                f"The policy could not be handed over. {failure} Start a server there that reads "
                f"{str(folder.parent)!r} and takes adapters (`python -m serve` with serve.hand_over=true, or vLLM "
                "with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1), and run the same command again."
            ) from failure
        try:
            self._require_the_files(answer, saved)
            yield
        finally:
            # One that stays there costs memory, and is never asked for again.
            with contextlib.suppress(EndpointFailure):
                await server.post("/unload_lora_adapter", {"lora_name": server.model})

    def _require_the_files(self, answer: object, saved: str) -> None:
        """Raises ProvenanceError: the server has read other files than those with the sha256 `saved`."""
        told = answer if isinstance(answer, dict) else {}
        read = told.get("adapter_sha256")
        if read not in (None, saved):
            raise ProvenanceError(
                f"The server at {self._page.base_url} has not read the policy it was handed: the sha256 of its files "
                f"is {saved[:12]}, and there {str(read)[:12]}. See that it reads the disk that this process writes "
                "to, or train without `generation`."
            )
        self.identity |= {name: str(told[name]) for name in ("base_sha256", "dtype") if name in told}

    @torch.no_grad()
    def _compared(self, model: SharedBase, responses: Responses, theirs_BT: Tensor, at_once: int) -> dict[str, float]:
        model.train()
        parts = processes.each(
            blocks(responses, at_once),
            lambda block: model.opinions(block.ids_BL, block.attention_BL, responses.length).log_probs_BT,
        )
        mask_BT = responses.mask_BT
        mine_BT, theirs_BT = torch.cat(parts) * mask_BT, theirs_BT * mask_BT
        distance = float(masked_mean((mine_BT - theirs_BT).abs(), mask_BT))
        if not distance <= self._page.tolerance:
            raise ProvenanceError(
                f"The server at {self._page.base_url} did not draw with the policy it was handed: its "
                f"log-probabilities are {distance:.3f} nats from the policy's own (mean over {int(mask_BT.sum())} "
                f"tokens), and generation.tolerance is {self._page.tolerance:g}. See that it serves train.base_model "
                "as it is trained and that it alone answers at this address, or train without `generation`."
            )
        return {"server_distance": distance, "server_kl": float(masked_mean(k3(theirs_BT, mine_BT), mask_BT))}


async def _draw(server: LanguageModel, asked: dict[str, Any], vocabulary: int) -> Drawn:
    """Raises EndpointFailure: the answer holds no whole response in token ids with their log-probabilities."""
    most = asked["max_tokens"]
    answer = await server.post("/completions", asked)
    try:
        choice = _Completion.model_validate(answer).choices[0]
        drawn = list(zip(choice.token_ids, choice.logprobs.token_logprobs, strict=True))
    except ValueError:
        what = f"answered without token ids and the log-probability of each: {beginning(answer)!r}"
        raise EndpointFailure(f"The server at {server.base_url} {what}.") from None
    if len(drawn) > most or not all(0 <= token < vocabulary for token in choice.token_ids):
        raise EndpointFailure(
            f"The server at {server.base_url} answered with {len(drawn)} tokens of at most {most}, the greatest "
            f"{max(choice.token_ids)} and the least {min(choice.token_ids)} of {vocabulary}: see that it serves "
            "train.base_model."
        )
    if len(drawn) < most and choice.token_ids[-1:] != asked["stop_token_ids"]:
        raise EndpointFailure(
            f"The server at {server.base_url} ended a response after {len(drawn)} of {most} tokens, and "
            "not with the end of a turn: see that its longest text is train.max_length."
        )
    return drawn


class _LogProbs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[int]
    logprobs: _LogProbs


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]


def _padded(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True, padding_value=value)
