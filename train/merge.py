"""Full weights of a trained stage: `python -m train merge EXPERIMENT.yaml STAGE [key=value ...]`.

Reads the base and the stage's adapter; writes runs/NAME/STAGE-merged, which any program loads that loads such a base:
weights in `serve.dtype`, the base's tokenizer and configuration, a card, and merge.json with what was checked:

1. Base and adapter are, by their hashes, those that were trained.
2. What was written, read back by plain transformers, gives the logits of base and adapter on texts of the run.

A base that was held in 4 bits in training is dequantised first, and the check is against that, unmerged.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retroformer.chat_template import chat_template
from retroformer.config import Experiment
from retroformer.embedded_model import base_model_folder
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.provenance import code_version, folder_sha256, package_versions
from train import inputs
from train.base import CPU, device, load_base, load_tokenizer, require_adapter
from train.card import CARD, merged_card
from train.dataset import samples
from train.sound import METRICS, read_metrics, require_fit
from train.stage import replacing

FACTS = "merge.json"
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja")
TEXTS = 8
"""How many of the run's texts are read to compare logits."""
POSITIONS = 64
"""At how many of a text's last positions: they hold the answer and the end of its prompt."""
TOLERANCE = {"float32": 1e-2, "bfloat16": 2.0}
"""The furthest that a merged logit may be off. Measured on SmolLM2-135M, at logits that the adapter moves by 3.9 on
average: 1e-4 in float32, where sums are in another order; 0.7 with weights rounded to bfloat16."""
LOST = 0.1
"""The largest part of what the adapter does to logits that rounding may undo: a small adapter drowns in bfloat16."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """How the logits of merged weights compare with those of base and adapter."""

    texts: int
    furthest: float
    """The largest difference of any logit."""
    mean: float
    """The mean difference of a logit."""
    mean_of_adapter: float
    """The same between base and adapter, and the base alone."""
    same_choice: float
    """The share of positions with the same likeliest token."""

    @property
    def lost(self) -> float:
        """The part of the adapter's effect that the merged weights lack."""
        return self.mean / self.mean_of_adapter if self.mean_of_adapter else float(self.mean > 0)


def merge(experiment: Experiment, name: str) -> Path:
    """The folder with the merged weights of the stage `name`, made unless it is there for this adapter already.

    Raises:
        MissingInput: the stage has not been trained, or there are no texts of the run to compare logits on.
        ProvenanceError: base or adapter are not those that were trained.
        ConfigError: merged and unmerged logits differ.
    """
    adapter, base = require_adapter(experiment.stage_folder(name)), base_model_folder(experiment.train.base_model)
    facts: dict[str, Any] = {
        "stage": name,
        "adapter_sha256": folder_sha256(adapter),
        "base_sha256": folder_sha256(base),
        "quantization": experiment.train.quantization,
        "dtype": experiment.serve.dtype,
    }
    _require_as_trained(adapter, facts)
    folder = adapter.with_name(f"{adapter.name}-merged")
    if (known := _facts(folder)).items() >= facts.items() and _are_sound(folder, known):
        return folder
    texts = texts_of(experiment, name)
    with replacing(folder) as unfinished:
        unmerged, plain = _write_merged(experiment, adapter, unfinished, texts)
        _add_what_belongs_to_weights(base, unfinished)
        agreement = compare(_read_back(experiment, unfinished, texts, scores=_is_scorer(adapter)), unmerged, plain)
        require_agreement(agreement, experiment.serve.dtype)
        facts |= {
            "model_sha256": folder_sha256(unfinished),
            "agreement": asdict(agreement),
            "tolerance": {"furthest": TOLERANCE[experiment.serve.dtype], "lost": LOST},
            "code": code_version().model_dump(),
            "versions": package_versions(),
        }
        (unfinished / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        (unfinished / CARD).write_text(merged_card(experiment, base, facts))
    return folder


def told(folder: Path) -> str:
    """One line about merged weights."""
    facts = _facts(folder)
    agreement = Agreement(**facts["agreement"])
    line = (
        f"{folder}: {facts['dtype']} weights, logits within {agreement.furthest:.2g} of the unmerged ones on "
        f"{agreement.texts} texts (tolerance {facts['tolerance']['furthest']:g}), {agreement.lost:.2%} of the "
        "adapter's effect lost"
    )
    if facts["quantization"] == "nf4":
        line += "; merged into the 4-bit base as dequantised (train.quantization=none takes the base as published)"
    return line


def texts_of(experiment: Experiment, name: str) -> list[list[int]]:
    """Tokens of texts that the stage was for, prompts and answers, spread over all there are. Raises MissingInput."""
    tokenizer = load_tokenizer(experiment.train)
    if name == "actor":
        from train.cloning import scripted_play
        from train.demonstrations import transcript

        few = experiment.train.actor.model_copy(update={"demonstrations": TEXTS})
        train = experiment.train.model_copy(update={"actor": few})
        return [transcript(tokenizer, one).ids for one in scripted_play(experiment.model_copy(update={"train": train}))]
    if name == "warm":
        found = inputs.written_advice(experiment)
    else:
        found = [(one.reflection.prompt, one.reflection.text) for one in inputs.rated(experiment)]
    known = list(dict.fromkeys(found))
    return [sample.ids for sample in samples(tokenizer, known[:: -(-len(known) // TEXTS)])]


def compare(merged: Tensor, unmerged: Tensor, plain: Tensor) -> Agreement:
    """The agreement of logits (texts, positions or 1, V or 1), of which `plain` are the base's without the adapter."""
    difference = (merged - unmerged).abs()
    return Agreement(
        texts=len(unmerged),
        furthest=difference.max().item(),
        mean=difference.mean().item(),
        mean_of_adapter=(plain - unmerged).abs().mean().item(),
        same_choice=(merged.argmax(-1) == unmerged.argmax(-1)).float().mean().item(),
    )


def require_agreement(agreement: Agreement, dtype: str) -> None:
    """Raises ConfigError, which says what differs."""
    exact = "" if dtype == "float32" else "; merge with serve.dtype=float32"
    if not agreement.furthest <= TOLERANCE[dtype]:
        raise ConfigError(
            f"Merged logits are up to {agreement.furthest:.3g} off the unmerged ones on {agreement.texts} texts "
            f"of the run ({agreement.mean:.2g} on average; at most {TOLERANCE[dtype]:g} is tolerated in {dtype}): "
            f"nothing was written{exact}."
        )
    if agreement.lost > LOST:
        raise ConfigError(
            f"Rounding to {dtype} changes logits by {agreement.mean:.2g} on average, and the adapter by only "
            f"{agreement.mean_of_adapter:.2g}: more than a tenth of what it learned would be lost, and nothing was "
            f"written{exact}."
        )


def _require_as_trained(adapter: Path, facts: dict[str, Any]) -> None:
    metrics = read_metrics(adapter / METRICS)
    for what, found, trained in (
        ("adapter", facts["adapter_sha256"], metrics["adapter_sha256"]),
        ("base model", facts["base_sha256"], metrics["inputs"]["base"]),
    ):
        if found != trained:
            raise ProvenanceError(
                f"The {what} of {adapter} has sha256 {found[:12]}, and {trained[:12]} was trained: put that one back, "
                f"or run `python -m train {facts['stage']} EXPERIMENT.yaml` again."
            )


def _facts(folder: Path) -> dict[str, Any]:
    """What is written of merged weights; nothing where it cannot be read."""
    try:
        return dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _are_sound(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether merged weights are those that were written; a warning says where they are not."""
    sound = any(folder.glob("*.safetensors")) and folder_sha256(folder) == facts.get("model_sha256")
    if not sound:
        logger.warning("The merged weights in %s are damaged: they are made again.", folder)
    return sound


def _is_scorer(adapter: Path) -> bool:
    return bool(json.loads((adapter / "adapter_config.json").read_text())["task_type"] == "SEQ_CLS")


def _write_merged(
    experiment: Experiment, adapter: Path, folder: Path, texts: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Merge and save; the logits before, of base with adapter and of the base alone."""
    from peft import PeftModel

    scores = _is_scorer(adapter)
    base = _base_to_merge_into(experiment, scores=scores)
    require_fit(base, adapter, scores=scores)
    adapted: Any = PeftModel.from_pretrained(base, str(adapter)).eval()
    unmerged = logits(adapted, texts, scores=scores)
    with adapted.disable_adapter():
        plain = logits(adapted, texts, scores=scores)
    merged: Any = adapted.merge_and_unload(safe_merge=True)
    merged.config.use_cache = True
    merged.save_pretrained(folder)
    return unmerged, plain


def _base_to_merge_into(experiment: Experiment, *, scores: bool) -> Any:
    """The base in the precision that is served; a 4-bit one as its weights are when they are used."""
    page, dtype = experiment.train, experiment.serve.dtype
    if page.quantization == "none":
        return load_base(page.model_copy(update={"dtype": dtype}), scores=scores)
    return load_base(page, scores=scores).dequantize().to(getattr(torch, dtype))


def _add_what_belongs_to_weights(base: Path, folder: Path) -> None:
    """Tokenizer and configuration as the base has them, with what older programs read there."""
    for pattern in (*TOKENIZER_FILES, "generation_config.json"):
        for path in base.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    if template := chat_template(base):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    of_base, saved = (json.loads((at / "config.json").read_text(encoding="utf-8")) for at in (base, folder))
    kept = {name: value for name, value in of_base.items() if name not in ("torch_dtype", "quantization_config")}
    (folder / "config.json").write_text(json.dumps(kept | saved, indent=2) + "\n", encoding="utf-8")


def _read_back(experiment: Experiment, folder: Path, texts: Sequence[Sequence[int]], *, scores: bool) -> Tensor:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    attention = "eager" if device() == CPU else "sdpa"  # As load_base has it.
    model = kind.from_pretrained(folder, dtype=experiment.serve.dtype, attn_implementation=attention)
    return logits(model.to(device()).eval(), texts, scores=scores)


@torch.no_grad()
def logits(model: Any, texts: Sequence[Sequence[int]], *, scores: bool) -> Tensor:
    """Of the last positions of each text, (texts, positions, V); of a scorer its scores, (texts, 1, 1)."""
    if not texts:
        raise MissingInput("There are no texts of this run to compare logits on: collect some first.")
    kept = {} if scores else {"logits_to_keep": min(POSITIONS, *(len(text) for text in texts))}
    rows = []
    for text in texts:
        read = model(input_ids=torch.tensor([text], device=device()), use_cache=False, **kept)
        rows.append(read.logits.float().cpu().reshape(1, -1, read.logits.shape[-1]))
    return torch.cat(rows)
