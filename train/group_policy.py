"""Runs GRPO as a stage: loads what the stages before made, keeps checkpoints and curves, publishes the policy.

`history` in metrics.json has the facts of every update, and the trackers have them as curves:

- score: mean reward; score_deviation: its standard deviation within the groups.
- equal_groups: groups whose rewards are all equal, so that only the divergence moves the policy; left_out: responses
  without a reward. Both are counts.
- different_in_group: how many different responses a group holds.
- kl: divergence of a response from the SFT policy, in nats: the mean of sums over its tokens of k1.
- entropy: mean over the tokens, in nats. response_tokens, ended: mean length, and share that ended by itself.
- distinct_1, distinct_2, copied_from_attempt, restating, copied_from_instruction: see `train.repetition`.
- alarm_collapse, alarm_length: 1 while they ring, see `train.alarms`; `alarms` has a sentence for each that ever did.
- policy_loss, kl_loss, ratio, clip_fraction, ratio_furthest_from_1, gradient_norm: of the last pass over the batch.
- server_distance, server_kl: where a server draws, see `train.remote_sampling`; `drawn_by` says which.
- tokens: read in a pass.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from retroformer.errors import ConfigError
from retroformer.train_sections import Grpo
from train import checkpoint, processes
from train.audit import require_better_than_chance
from train.base import load_tokenizer
from train.dataset import Prompt, prompt_ids, require_length
from train.finite import require_finite_scores
from train.grpo import Rewards, grpo, make_optimizer
from train.remote_sampling import drawn_by, responder
from train.repetition import describer
from train.sampling import Responses, blocks, draw_of
from train.score_scale import score_scale
from train.shared_base import SharedBase, load_shared_base
from train.stage import Meter, Stage, publish
from train.updates import take_updates


def improve_in_groups(
    stage: Stage,
    prompts: Sequence[Prompt],
    adapters: Mapping[str, Path],
    live: AbstractContextManager[Rewards] | None,
) -> None:
    """Train the adapter `sft` on `prompts` against the adapter `reward`, or on what `live` gives; publish it.

    Raises:
        ConfigError: a prompt and the longest response are longer than train.max_length together, a batch does not hold
            whole groups, or the reward model is no better than chance.
    """
    experiment, meter = stage.experiment, Meter()
    page, settings = experiment.train, experiment.train.grpo
    require_whole_groups(settings)
    if live is None:
        require_better_than_chance(adapters["reward"], page.weak_reward_model)
    tokenizer = load_tokenizer(page)
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    longest_response = experiment.reflector.max_new_tokens
    require_length([len(one) + longest_response for one in ids], page.max_length, "prompts with their response")
    model = load_shared_base(page, adapters["sft"], adapters.get("reward"))
    optimizer = make_optimizer(model, settings)
    history = checkpoint.restore(stage.checkpoints, model, optimizer)
    resumed_from = len(history)
    draw = draw_of(experiment, settings, tokenizer)
    describe, answer = describer(tokenizer, prompts, ids), responder(stage, settings)
    source = nullcontext(ModelScores(model, adapters["reward"], settings)) if live is None else live
    with source as rewards:
        updates = grpo(model, optimizer, ids, rewards, settings, draw, resumed_from, describe, answer)
        told = {"prompts": len(prompts)} | take_updates(stage, settings, updates, history, model, optimizer)
    tokens = sum(int(facts["tokens"]) for facts in history[resumed_from:]) * settings.epochs
    publish(stage, model.save_policy, told | drawn_by(answer) | meter.read(tokens))


def require_whole_groups(page: Grpo) -> None:
    """Raises ConfigError where a batch does not hold whole groups."""
    if page.batch_size % page.group:
        raise ConfigError(
            f"train.grpo.batch_size={page.batch_size} is no multiple of train.grpo.group={page.group}: "
            "change one of them."
        )


class ModelScores:
    """Rewards responses by the reward model, in standard deviations of its scores in training."""

    def __init__(self, model: SharedBase, reward: Path, page: Grpo) -> None:
        self._model, self._page = model, page
        self._scale = score_scale(reward)

    @torch.no_grad()
    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """The score of each response, (B,), less one for a response without an end.

        The same response to the same prompt has the same score: where it is read beside longer ones it is rounded
        otherwise, and a group that differs by rounding alone would be scaled up to advantages of 1.

        Raises:
            NotFinite: a score is infinite or not a number, which a group would take for one that is missing.
        """
        micro_batches = blocks(responses, self._page.micro_batch_size)
        parts = processes.each(micro_batches, lambda block: self._model.scores(block.ids_BL, block.attention_BL))
        raw_B = torch.cat(parts)
        require_finite_scores(raw_B)
        rows = [(number, tuple(tokens)) for number, tokens in zip(asked, responses.tokens, strict=True)]
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        alike_B = raw_B[[first.setdefault(row, place) for place, row in enumerate(rows)]]
        return self._scale(alike_B, responses.ended_B)
