"""The base model with its LoRA adapters, and one forward pass for rows of different adapters.

Shapes: B rows, T new tokens of all rows packed in one batch, V vocabulary.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import JsonValue

from retroformer.errors import MissingInput, RetroformerError
from retroformer.models.adapter_weights import require_fit
from retroformer.models.loading import PROBE_TOKENS, load_model, replace_attention
from retroformer.models.precision import Quantization, nf4
from retroformer.run.adapter_names import training_command

from . import attention
from .chat_tokenizer import ChatTokenizer
from .linear import LoraWeights, Spans, add_adapter, pack, read_lora, remove_adapter
from .prefixes import Geometry, PrefixStore
from .slots import KeyValueSlots

BASE = "__base__"
"""Adapter name of a row without an adapter."""


class PassResult(NamedTuple):
    """What a pass computes for its rows."""

    logits_BV: torch.Tensor
    """Logits after each row's last token, float32 on the model's device."""
    scores: Mapping[int, float]
    """Scores of all tokens of the rows whose adapter is a reward model."""


class Model(ChatTokenizer):
    """A model in memory. Its methods may be called from any thread, `forward` from one thread at a time."""

    def __init__(
        self,
        folder: Path,
        adapters: Mapping[str, Path],
        dtype: str,
        rewards: Mapping[str, Path] | None = None,
        template_settings: Mapping[str, JsonValue] | None = None,
        quantization: Quantization = "none",
    ) -> None:
        """Load the base model, the `adapters` that write and the `rewards` that score; their names must differ.

        `template_settings` are those of `train.chat_template_kwargs`. Raises MissingInput if an adapter cannot be
        loaded, DamagedFile if the base model cannot be read, ConfigError if its architecture is not supported or an
        adapter does not fit it.
        """
        from transformers import AttentionInterface
        from transformers.utils import logging

        AttentionInterface.register(attention.NAME, attention.attend)
        logging.disable_progress_bar()
        super().__init__(folder, template_settings)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        in_4_bits = {"quantization_config": nf4(getattr(torch, dtype))} if quantization == "nf4" else {}
        model = load_model(folder, dtype=dtype, device_map={"": device}, **in_4_bits).eval()
        replace_attention(model, attention.NAME, torch, lambda: self._measure(model))
        self.quantization = _quantization(model.config)
        """Quantization of the base weights, such as `nf4`; `none` without one."""
        self._spans = Spans()
        self._passing = threading.Lock()
        self._adapters = frozenset[str]()
        self._score_heads_H = dict[str, torch.Tensor]()
        self._last_BH = torch.empty(0)
        """Input of the language head in the current pass; kept only with reward models."""
        self._model = model
        self._load_all(adapters, rewards or {})
        pack(self._model)
        if rewards:
            self._model.get_output_embeddings().register_forward_pre_hook(self._keep_hidden)

    def _measure(self, model: Any) -> dict[str, Any]:
        """Read the shape of a model, and return the options of a pass over the first row of a batch."""
        config = model.config.get_text_config()
        self.geometry = Geometry(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            dtype=model.dtype,
            device=model.device,
        )
        slots = KeyValueSlots(self.geometry, PROBE_TOKENS, store := PrefixStore(self.geometry, 0))
        slots.add(store.prefix([]))
        batch, _ = slots.prepare_pass([min(PROBE_TOKENS, self.context_tokens)], [BASE])
        return {"past_key_values": slots, "use_cache": True, "batch": batch}

    def _load_all(self, adapters: Mapping[str, Path], rewards: Mapping[str, Path]) -> None:
        """Load the first adapters: all are compared with the base before any of them renames its layers."""
        folders, loras = {**adapters, **rewards}, dict[str, LoraWeights]()
        for name, folder in folders.items():
            with _report_unloadable(folder):
                loras[name] = self._read(folder, scores=name in rewards)
                require_fit(self._model, folder, scores=name in rewards)
        for name, folder in folders.items():
            with _report_unloadable(folder):
                self._add(name, loras[name])

    def forward(self, columns: Sequence[Sequence[int]], slots: KeyValueSlots, adapters: Sequence[str]) -> PassResult:
        """Add columns[i] to row i of `slots`, and compute what follows the last token of each row.

        Rows may add different numbers of tokens, each at least 1. Raises KeyError if no adapter of that name is loaded.
        """
        with self._passing:
            # Memory that the slots take must not be an inference tensor, which could not be written between passes.
            batch, order = slots.prepare_pass([len(tokens) for tokens in columns], adapters)
            self._spans.current = self._spans_of([(adapters[row], len(columns[row])) for row in order])
            tokens = torch.tensor([token for row in order for token in columns[row]], device=self.geometry.device)
            with torch.inference_mode():
                logits_1BV = self._model(
                    input_ids=tokens[None],
                    position_ids=batch.positions[None],
                    past_key_values=slots,
                    use_cache=True,
                    logits_to_keep=batch.last,
                    batch=batch,
                ).logits
                slots.complete_pass()
                scores = {
                    row: float(self._last_BH[row].float() @ self._score_heads_H[adapter])
                    for row, adapter in enumerate(adapters)
                    if adapter in self._score_heads_H
                }
                return PassResult(logits_1BV[0].float(), scores)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder`, for use from the next pass on. Raises MissingInput, ConfigError."""
        with _report_unloadable(folder):
            lora = self._read(folder)
            require_fit(self._model, folder)
            self._add(name, lora)

    def _read(self, folder: Path, *, scores: bool = False) -> LoraWeights:
        """Read an adapter, a reward model's if `scores`. Raises ValueError if it cannot be served."""
        lora = read_lora(folder, scores=scores)
        device, dtype = self.geometry.device, self.geometry.dtype
        factors = {path: (down.to(device, dtype), up.to(device, dtype)) for path, (down, up) in lora.factors.items()}
        head = None if lora.head is None else lora.head.to(device, torch.float32)
        checked = [*factors.items(), *([] if head is None else [("the score head", (head,))])]
        for path, weights in checked:
            # They are checked here, since scaling or a narrower dtype may have overflowed.
            if not all(weight.isfinite().all() for weight in weights):
                raise ValueError(f"{path} has weights that are NaN or infinite")
        return LoraWeights(factors, head)

    def _add(self, name: str, lora: LoraWeights) -> None:
        with self._passing:
            add_adapter(self._model, name, lora.factors, self._spans)
            self._adapters |= {name}
            if lora.head is not None:
                self._score_heads_H[name] = lora.head

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; rows that still use it fail in the next pass."""
        with self._passing:
            self._adapters -= {name}
            remove_adapter(self._model, name)

    def _spans_of(self, rows: Sequence[tuple[str, int]]) -> tuple[tuple[str, slice], ...]:
        """Return the span of each adapter in the batch, from each row's adapter and token count, sorted by adapter."""
        spans, start = [], 0
        for name, group in groupby(rows, key=itemgetter(0)):
            if name != BASE and name not in self._adapters:
                raise KeyError(name)
            stop = start + sum(count for _, count in group)
            spans.append((name, slice(start, stop)))
            start = stop
        return tuple(spans)

    def _keep_hidden(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last_BH = inputs[0][0]


def _quantization(config: Any) -> str:
    packed = getattr(config, "quantization_config", None)
    if packed is None:
        return "none"
    settings = packed if isinstance(packed, dict) else packed.to_dict()
    return str(settings.get("bnb_4bit_quant_type") or settings.get("quant_method"))


@contextmanager
def _report_unloadable(folder: Path) -> Iterator[None]:
    """Translate the errors of a block that reads the adapter in `folder` to MissingInput."""
    from safetensors import SafetensorError

    try:
        yield
    except (torch.OutOfMemoryError, RetroformerError):
        raise
    # Damaged weights; a config that is damaged, absent or of another kind; layers that are no plain LoRA.
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        # Messages quote names from the file, which may have any length.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        # Training skips a folder whose metrics say that the stage is finished, hence the advice to move it away.
        raise MissingInput(
            f"Adapter {folder.name!r} in {str(folder)!r} cannot be loaded ({reason}): move the folder away and "
            f"retrain with {training_command(folder.name)}, or name another folder in serve.adapters."
        ) from error
