"""Measures the memory of a stage by two real steps on random tokens.

Models, adapters, trainers and the loops of PPO and GRPO are those of the stages; only the texts are random.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Grpo, Ppo
from retroformer.run.provenance import ADAPTER_WEIGHTS

from ..base import CPU, add_fresh_adapter, device, load_base, load_tokenizer, read_config
from ..data.samples import Sample, SamplePair
from ..dpo import dpo_trainer
from ..group_trainer import make_trainer
from ..imitation import Imitation, adapted
from ..reward import Ranking, scorer
from ..rl import grpo, ppo
from ..rl.policy import SharedBase, make_optimizer
from ..rl.sampling import Responses, SamplingSettings, ended_responses, respond, sampling_settings
from ..shared_prompt.packed import Groups
from ..stage import Stage
from ..trainer import run_trainer
from .estimate import PlannedStage
from .shape import skeleton

STEPS = 2
"""The first step allocates the optimiser's state; the second has it in memory from its start."""

Rehearsal = tuple[nn.Module, Callable[[], object]]
"""A model in memory, and a function that takes the steps."""


def rehearse(experiment: Experiment, case: PlannedStage) -> int:
    """Take `STEPS` steps of a stage, each on one full micro-batch; return the peak memory of tensors in bytes."""
    stage = Stage(case.kind.name, _with_one_micro_batch(experiment, case), {})
    with TemporaryDirectory() as folder:
        model, run = (_on_policy if case.kind.on_policy else _supervised)(stage, case, Path(folder))
        if device() == CPU:
            with LiveBytes(tensors_of(model)) as live:
                run()
            return int(live.peak)
        torch.cuda.reset_peak_memory_stats()
        run()
        return int(torch.cuda.max_memory_allocated())


def _with_one_micro_batch(experiment: Experiment, case: PlannedStage) -> Experiment:
    section, responses = case.train.settings(case.kind.name), _responses(case)
    changes: dict[str, Any] = {"epochs": 1} | ({"batch_size": 1} if case.kind.name == "reward" else {})
    if isinstance(section, Ppo | Grpo):
        size = "group" if isinstance(section, Grpo) else "responses_per_prompt"
        changes = {"epochs": STEPS, "updates": 1, "batch_size": responses, size: responses}
    train: dict[str, Any] = {"batch_size": responses, "micro_batch_tokens": case.read_at_once}
    train |= {case.kind.name: section.model_copy(update=changes)}
    return experiment.model_copy(update={"train": experiment.train.model_copy(update=train)})


def _responses(case: PlannedStage) -> int:
    """Return the number of responses with which one prompt fills a micro-batch."""
    prompt = case.tokens - case.response_tokens
    return max(case.kind.responses, (case.read_at_once - prompt) // case.response_tokens)


def _supervised(stage: Stage, case: PlannedStage, folder: Path) -> Rehearsal:
    rows = [row for prompt in _prompts(stage, case, STEPS) for row in _rows(stage, case, prompt)]
    start = fresh_adapter(stage.experiment, folder / "sft")
    trainer = supervised_trainer(stage, start, Groups(rows, case.read_at_once))
    return trainer.model, lambda: run_trainer(trainer, stage)


def supervised_trainer(stage: Stage, start: Path, groups: Groups) -> Any:
    """Return the trainer of SFT, the reward model or DPO, from the adapter in `start` on `groups`; it saves nothing."""
    train = stage.experiment.train
    if stage.name == "reward":
        trainer = make_trainer(stage, scorer(train, start), groups, Ranking(train.pair_weight))
    elif stage.name == "dpo":
        trainer = dpo_trainer(stage, start, groups)
    else:
        trainer = make_trainer(stage, adapted(train, start), groups, Imitation())
    trainer.args.output_dir, trainer.args.save_strategy = str(start.parent), "no"
    return trainer


def _on_policy(stage: Stage, case: PlannedStage, folder: Path) -> Rehearsal:
    experiment, train = stage.experiment, stage.experiment.train
    reward = fresh_adapter(experiment, folder / "reward", scores=True) if "reward" in case.kind.needs else None
    sft, checkpointing = fresh_adapter(experiment, folder / "sft"), train.gradient_checkpointing
    model = SharedBase(load_base(train), sft, reward, gradient_checkpointing=checkpointing)
    prompts = _prompts(stage, case, 1)
    draw = sampling_settings(experiment, load_tokenizer(train), max(1, case.drawn))
    # No token ends a turn, so every response has the maximal length.
    draw = draw._replace(max_new_tokens=case.response_tokens, ends=())
    answer = respond if case.drawn else _constant_responses
    if stage.name == "ppo":
        optimizer = make_optimizer(model, train.ppo)
        return model, lambda: list(ppo.ppo(model, optimizer, prompts, train.ppo, draw, answer=answer))
    optimizer = make_optimizer(model, train.grpo)

    def rewards(update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        return torch.zeros(len(indices))  # Scoring needs less memory than training on as many rows.

    return model, lambda: list(grpo.grpo(model, optimizer, prompts, rewards, train.grpo, draw, answer=answer))


def _constant_responses(model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> Responses:
    """Stand in for a server that generates responses, which needs no memory in this process."""
    drawn_BT = torch.ones(len(prompts), draw.max_new_tokens, dtype=torch.long, device=model.device)
    return ended_responses(prompts, drawn_BT, draw)


def fresh_adapter(experiment: Experiment, folder: Path, *, scores: bool = False) -> Path:
    """Write an adapter of the config's shape with small random weights into `folder`, without loading a model."""
    shell = skeleton(read_config(experiment.train.base_model), scores=scores)
    adapted: Any = add_fresh_adapter(shell, experiment.train.lora, scores=scores)
    weights = {name: 1e-3 * torch.randn(weight.shape) for name, weight in get_peft_model_state_dict(adapted).items()}
    adapted.peft_config["default"].save_pretrained(folder)
    save_file(weights, folder / ADAPTER_WEIGHTS)
    return folder


def _prompts(stage: Stage, case: PlannedStage, count: int) -> list[list[int]]:
    return _random(stage, (count, case.tokens - case.response_tokens), seed=0)


def _rows(stage: Stage, case: PlannedStage, prompt: list[int]) -> list[Sample | SamplePair]:
    """Return random responses to a prompt as samples, or each with the first of them as pairs."""
    responses = _random(stage, (_responses(case), case.response_tokens), seed=1)
    if case.kind.responses == 2:
        return [SamplePair(prompt, responses[0], other) for other in responses[1:]]
    return [Sample(prompt, response) for response in responses]


def _random(stage: Stage, shape: tuple[int, int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    vocabulary = len(load_tokenizer(stage.experiment.train))
    rows: list[list[int]] = torch.randint(3, vocabulary, shape, generator=generator).tolist()
    return rows


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors on a CPU, whose allocator keeps no count, but not workspaces inside kernels."""

    def __init__(self, existing: Iterable[Tensor] = ()) -> None:
        """Count `existing` tensors, and every tensor that is made while this mode is active."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        for tensor in existing:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, result)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def end(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, end)
        self.now += size
        self.peak = max(self.peak, self.now)


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a model, and the quantisation states of its 4-bit weights."""
    yield from model.parameters()
    yield from model.buffers()
    for parameter in model.parameters():
        state: Any = getattr(parameter, "quant_state", None)
        for owner in (state, getattr(state, "state2", None)):
            yield from (value for value in vars(owner or object).values() if isinstance(value, Tensor))
