"""One real step of a stage on made-up tokens, and the memory that it took: the measurement behind `train plan`.

The model, the adapters, the trainers and the PPO loop are those of the stages; only the texts are noise, of the
lengths that were asked for. On a GPU the allocator's own peak is read. On a CPU no allocator counts, and the peak of a
process holds the libraries and whatever was freed and not given back; so the storages of live tensors are counted.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from retroformer.config import Experiment, Optimizer
from train.base import CPU, device, load_base, load_tokenizer, lora_config
from train.dataset import IGNORED
from train.stage import Stage
from train.supervised import run_trainer, trainer_settings

STEPS = 2
"""The first makes the optimiser's state, the second has it in memory from its start."""


class Lengths(NamedTuple):
    """What a rehearsed step is made of."""

    micro_batch: int
    tokens: int
    """Of each sample, prompt and response together."""
    response_tokens: int


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


def rehearse(experiment: Experiment, stage: str, lengths: Lengths) -> int:
    """Take `STEPS` steps of sft, reward or ppo with one micro-batch each; the peak memory of tensors, in bytes."""
    with TemporaryDirectory() as folder:
        prepare = {"sft": _sft, "reward": _reward, "ppo": _ppo}[stage]
        model, run = prepare(experiment, lengths, Path(folder))
        with _peak_memory(model) as peak:
            run()
        return peak()


@contextmanager
def _peak_memory(model: nn.Module) -> Iterator[Callable[[], int]]:
    if device() != CPU:
        torch.cuda.reset_peak_memory_stats()
        yield torch.cuda.max_memory_allocated
        return
    with LiveBytes(tensors_of(model)) as live:
        yield lambda: live.peak


def _sft(experiment: Experiment, lengths: Lengths, folder: Path) -> tuple[nn.Module, Callable[[], object]]:
    from trl.trainer.sft_config import SFTConfig

    from train.imitation import ResponseTrainer

    page = experiment.train
    rows = []
    for ids in _texts(experiment, lengths, STEPS * lengths.micro_batch):
        prompt = len(ids) - lengths.response_tokens
        rows.append({"input_ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]})
    return _trainer(experiment, "sft", lengths, folder, rows, ResponseTrainer, SFTConfig, load_base(page))


def _reward(experiment: Experiment, lengths: Lengths, folder: Path) -> tuple[nn.Module, Callable[[], object]]:
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    texts = _texts(experiment, lengths, 2 * STEPS * lengths.micro_batch)
    rows = [{"chosen_ids": one, "rejected_ids": other} for one, other in zip(texts[::2], texts[1::2], strict=True)]
    base = load_base(experiment.train, scores=True)
    return _trainer(experiment, "reward", lengths, folder, rows, RewardTrainer, RewardConfig, base)


def _trainer(
    experiment: Experiment,
    name: str,
    lengths: Lengths,
    folder: Path,
    rows: list[dict[str, Any]],
    kind: Any,
    settings: Any,
    base: Any,
) -> tuple[nn.Module, Callable[[], object]]:
    from datasets import Dataset

    page: Optimizer = getattr(experiment.train, name)
    page = page.model_copy(update={"batch_size": lengths.micro_batch, "micro_batch_size": lengths.micro_batch})
    stage = Stage(name, experiment, {})
    own = {"output_dir": str(folder), "save_strategy": "no"}
    trainer: Any = kind(
        model=base,
        peft_config=lora_config(experiment.train.lora, scores=name == "reward"),
        args=settings(**trainer_settings(stage, page) | own),
        processing_class=load_tokenizer(experiment.train),
        train_dataset=Dataset.from_list(rows),
    )
    return trainer.model, lambda: run_trainer(trainer, stage, len(rows))


def _ppo(experiment: Experiment, lengths: Lengths, folder: Path) -> tuple[nn.Module, Callable[[], object]]:
    from train.ppo import Sampling, make_optimizer, ppo
    from train.shared_base import SharedBase

    base = load_base(experiment.train)
    adapters = [fresh_adapter(experiment, folder / name, scores=name == "reward") for name in ("sft", "reward")]
    model = SharedBase(base, *adapters)
    update: dict[str, Any] = {"batch_size": lengths.micro_batch, "micro_batch_size": lengths.micro_batch}
    page = experiment.train.ppo.model_copy(update=update | {"updates": 1, "epochs": STEPS})
    prompts = [ids[: -lengths.response_tokens] for ids in _texts(experiment, lengths, lengths.micro_batch)]
    # No token is the end of a turn, so every response is as long as it may be.
    sampling = Sampling(lengths.response_tokens, 0, base.config.get_text_config().vocab_size, experiment.seed)
    optimizer = make_optimizer(model, page)
    return model, lambda: list(ppo(model, optimizer, prompts, page, sampling))


def fresh_adapter(experiment: Experiment, folder: Path, *, scores: bool) -> Path:
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


def _texts(experiment: Experiment, lengths: Lengths, count: int) -> list[list[int]]:
    """Noise; all but the first of each micro-batch are a token shorter, since real ones are padded."""
    generator = torch.Generator().manual_seed(experiment.seed)
    words = len(load_tokenizer(experiment.train))
    texts = torch.randint(3, words, (count, lengths.tokens), generator=generator).tolist()
    return [ids if not index % lengths.micro_batch else ids[1:] for index, ids in enumerate(texts)]
