"""One real step of a stage on made-up tokens, and the memory that it took: the measurement behind `train plan`.

The model, the adapters, the trainers and the loops of PPO and GRPO are those of the stages; only the texts are noise,
of the lengths that were asked for. On a GPU the allocator's own peak is read. On a CPU no allocator counts, and the
peak of a process holds the libraries and whatever was freed and not given back; so the storages of live tensors are
counted.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from retroformer.config import Experiment
from retroformer.train_sections import Grpo, Optimizer, Ppo
from train.base import CPU, device, load_base, load_tokenizer, lora_config
from train.dataset import IGNORED
from train.memory import Load
from train.sampling import Draw, Respond, Responses, blocks, draw_of, padded_responses, respond
from train.shared_base import SharedBase
from train.stage import Stage
from train.stage_kind import StageName
from train.supervised import run_trainer, trainer_settings

STEPS = 2
"""The first makes the optimiser's state, the second has it in memory from its start."""

Rehearsal = tuple[nn.Module, Callable[[], object]]
"""A model in memory, and what takes the steps."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are alive, from their making to their end; workspaces inside kernels are not.

    Backward passes on a CPU run in the calling thread and are seen, too.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, made)
        return made

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
    """Parameters and buffers of a model, and what 4-bit weights keep beside them."""
    yield from model.parameters()
    yield from model.buffers()
    for parameter in model.parameters():
        state: Any = getattr(parameter, "quant_state", None)
        for owner in (state, getattr(state, "state2", None)):
            yield from (value for value in vars(owner or object).values() if isinstance(value, Tensor))


def rehearse(experiment: Experiment, name: StageName, load: Load) -> int:
    """Take `STEPS` steps of a stage with no more rows than are in memory at once; the peak of tensors, in bytes."""
    prepare = {"warm": _imitation, "sft": _imitation, "reward": _reward, "ppo": _ppo, "dpo": _dpo, "grpo": _grpo}
    stage = Stage(name, _with_small_batches(experiment, name, load), {})
    with TemporaryDirectory() as folder:
        model, run = prepare[name](stage, load, Path(folder))
        with _peak_memory(model) as peak:
            run()
        return peak()


def _with_small_batches(experiment: Experiment, name: StageName, load: Load) -> Experiment:
    page: Optimizer = getattr(experiment.train, name)
    changes = {"batch_size": load.micro_batch, "micro_batch_size": load.micro_batch}
    if isinstance(page, Ppo | Grpo):
        batch = max(load.micro_batch, load.rows_drawn)
        changes |= {"batch_size": batch, "updates": 1, "epochs": STEPS}
    if isinstance(page, Grpo):
        changes |= {"group": 1}  # The prompts of a group have one length; the padding of real rows is made of several.
    train = experiment.train.model_copy(update={name: page.model_copy(update=changes)})
    return experiment.model_copy(update={"train": train})


@contextmanager
def _peak_memory(model: nn.Module) -> Iterator[Callable[[], int]]:
    if device() != CPU:
        torch.cuda.reset_peak_memory_stats()
        yield torch.cuda.max_memory_allocated
        return
    with LiveBytes(tensors_of(model)) as live:
        yield lambda: live.peak


def _imitation(stage: Stage, load: Load, folder: Path) -> Rehearsal:
    from datasets import Dataset

    from train.imitation import response_trainer

    rows = []
    for ids in _texts(stage, load, STEPS * load.micro_batch):
        prompt = len(ids) - load.response_tokens
        rows.append({"input_ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]})
    trainer = response_trainer(stage.experiment.train, _arguments(stage, folder), Dataset.from_list(rows))
    return trainer.model, lambda: run_trainer(trainer, stage, len(rows))


def _reward(stage: Stage, load: Load, folder: Path) -> Rehearsal:
    from datasets import Dataset

    from train.reward import order_trainer

    rows = [{"chosen_ids": one, "rejected_ids": other} for one, other in _pairs(stage, load)]
    trainer = order_trainer(stage.experiment.train, _arguments(stage, folder), Dataset.from_list(rows))
    return trainer.model, lambda: run_trainer(trainer, stage, len(rows))


def _dpo(stage: Stage, load: Load, folder: Path) -> Rehearsal:
    from datasets import Dataset

    from train.dpo import pair_trainer

    response = slice(-load.response_tokens, None)
    rows = [
        {"prompt_ids": one[: response.start], "chosen_ids": one[response], "rejected_ids": other[response][1:]}
        for one, other in _pairs(stage, load)
    ]
    sft = fresh_adapter(stage.experiment, folder / "sft")
    page = stage.experiment.train.dpo
    trainer = pair_trainer(stage, page, _arguments(stage, folder), sft, 0, Dataset.from_list(rows))
    return trainer.model, lambda: run_trainer(trainer, stage, len(rows))


def _arguments(stage: Stage, folder: Path) -> dict[str, Any]:
    page: Optimizer = getattr(stage.experiment.train, stage.name)
    return trainer_settings(stage, page) | {"output_dir": str(folder), "save_strategy": "no"}


def _ppo(stage: Stage, load: Load, folder: Path) -> Rehearsal:
    from train.ppo import make_optimizer, ppo

    page, model = stage.experiment.train.ppo, _shared_base(stage, folder, with_reward=True)
    draw = _draw(stage, load, page, model)
    prompts, optimizer = _prompts(stage, load), make_optimizer(model, page)
    return model, lambda: list(ppo(model, optimizer, prompts, page, draw, answer=_answer(page)))


def _grpo(stage: Stage, load: Load, folder: Path) -> Rehearsal:
    from train.grpo import grpo, make_optimizer

    page = stage.experiment.train.grpo
    scored = page.reward == "model"
    model = _shared_base(stage, folder, with_reward=scored)
    draw = _draw(stage, load, page, model)
    prompts, optimizer = _prompts(stage, load), make_optimizer(model, page)

    def rewards(update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        if not scored:
            return torch.zeros(len(asked))
        parts = [model.scores(one.ids_BL, one.attention_BL) for one in blocks(responses, page.micro_batch_size)]
        return torch.cat(parts)

    return model, lambda: list(grpo(model, optimizer, prompts, rewards, page, draw, answer=_answer(page)))


def _answer(page: Ppo | Grpo) -> Respond:
    """Drawing as in the stage, or, where a server does it, what takes no memory here."""
    return respond if page.generation is None else _same_word_over_and_over


def _same_word_over_and_over(model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
    drawn_BT = torch.ones(len(prompts), draw.max_new_tokens, dtype=torch.long, device=model.device)
    return padded_responses(prompts, drawn_BT, draw)


def _shared_base(stage: Stage, folder: Path, *, with_reward: bool) -> SharedBase:
    experiment = stage.experiment
    reward = fresh_adapter(experiment, folder / "reward", scores=True) if with_reward else None
    return SharedBase(load_base(experiment.train), fresh_adapter(experiment, folder / "sft"), reward)


def _draw(stage: Stage, load: Load, page: Ppo | Grpo, model: SharedBase) -> Draw:
    """No token is the end of a turn, so every response is as long as it may be."""
    draw = draw_of(stage.experiment, page, load_tokenizer(stage.experiment.train))
    return draw._replace(max_new_tokens=load.response_tokens, eos_id=model.vocabulary)


def fresh_adapter(experiment: Experiment, folder: Path, *, scores: bool = False) -> Path:
    """Write an adapter of the page's shape with small random weights into `folder`, without loading a model."""
    from peft import get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file

    from train.architecture import read_config, skeleton

    shell = skeleton(read_config(experiment.train.base_model).config, scores=scores)
    adapted: Any = get_peft_model(shell, lora_config(experiment.train.lora, scores=scores))
    weights = {name: 1e-3 * torch.randn(one.shape) for name, one in get_peft_model_state_dict(adapted).items()}
    adapted.peft_config["default"].save_pretrained(folder)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _prompts(stage: Stage, load: Load) -> list[list[int]]:
    return [ids[: -load.response_tokens] for ids in _texts(stage, load, load.micro_batch)]


def _pairs(stage: Stage, load: Load) -> list[tuple[list[int], list[int]]]:
    texts = _texts(stage, load, 2 * STEPS * load.micro_batch)
    return list(zip(texts[::2], texts[1::2], strict=True))


def _texts(stage: Stage, load: Load, count: int) -> list[list[int]]:
    """Noise; all but the first of each micro-batch are a token shorter, since real ones are padded."""
    generator = torch.Generator().manual_seed(stage.experiment.seed)
    words = len(load_tokenizer(stage.experiment.train))
    texts = torch.randint(3, words, (count, load.tokens), generator=generator).tolist()
    return [ids if not index % load.micro_batch else ids[1:] for index, ids in enumerate(texts)]
