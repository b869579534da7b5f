"""Full weights of a trained stage: `retroformer train merge EXPERIMENT.yaml STAGE [key=value ...]`.

Reads the base and the stage's adapter; writes runs/NAME/STAGE-merged, which any program can load that loads the base:
weights in `serve.dtype`, the base's tokenizer and config, a model card, and merge.json with the result of two checks:

1. The hashes of base and adapter are those recorded in training.
2. The written model, read back by transformers, has the logits of base plus adapter on texts of the run.

A base that was in 4 bits in training is dequantised before merging, and the logits are compared with that.
"""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Train
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.models.adapter_weights import require_fit
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import end_tokens, load_adapter, load_model
from retroformer.models.loading import load_tokenizer as load_base_tokenizer
from retroformer.models.precision import Dtype, serving_dtype
from retroformer.models.prompt_template import prompt_template
from retroformer.run.provenance import code_version, folder_sha256, package_versions

from ..adapter import Adapter, require_adapter
from ..base import CPU, device, load_base, load_tokenizer
from ..data import inputs
from ..data.samples import AdviceText, samples
from ..model_card import CARD, merged_card
from ..stage import replacing
from ..stage_kinds import STAGES

FACTS = "merge.json"
GENERATION = "generation_config.json"
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja")
TEXTS = 8
"""Texts of the run on which logits are compared."""
POSITIONS = 64
"""Last positions of each text at which logits are compared: the answer and the end of its prompt."""
TOLERANCE = {"float32": 1e-2, "bfloat16": 2.0}
"""Largest accepted difference of a logit. On SmolLM2-135M with an adapter that changes logits by 3.9 on average, the
difference is 1e-4 in float32, from another order of sums, and 0.7 with weights rounded to bfloat16."""
LOST = 0.1
"""Largest accepted share of the adapter's effect that is lost by rounding, which matters for small adapters."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """Differences between the logits of merged weights and those of base plus adapter."""

    texts: int
    furthest: float
    """Largest absolute difference of a logit."""
    mean: float
    """Mean absolute difference of a logit."""
    mean_of_adapter: float
    """Mean absolute difference between base plus adapter and the base alone."""
    same_choice: float
    """Share of positions with the same most likely token."""

    @property
    def lost(self) -> float:
        """Share of the adapter's effect that the merged weights lack."""
        return self.mean / self.mean_of_adapter if self.mean_of_adapter else float(self.mean > 0)


def merge(experiment: Experiment, name: str) -> Path:
    """Merge the adapter of the stage `name` unless that is done already; return the folder of the merged weights.

    Raises:
        MissingInput: the stage has not been trained, or there are no texts of the run to compare logits on.
        ProvenanceError: base or adapter have changed since training.
        ConfigError: merged and unmerged logits differ.
    """
    trained, base = require_adapter(experiment.stage_folder(name)), base_model_folder(experiment.train.base_model)
    adapter = trained.folder
    dtype = serving_dtype(experiment.serve.dtype, base, torch)
    facts: dict[str, Any] = {
        "stage": name,
        "adapter_sha256": trained.sha256,
        "base_sha256": folder_sha256(base),
        "quantization": experiment.train.quantization,
        "dtype": dtype,
    }
    if template_settings := experiment.train.chat_template_kwargs:
        facts["chat_template_kwargs"] = template_settings
    _require_as_trained(trained, facts)
    folder = adapter.with_name(f"{adapter.name}-merged")
    if (written := _facts(folder)).items() >= facts.items():
        if any(folder.glob("*.safetensors")) and folder_sha256(folder) == written.get("model_sha256"):
            return folder
        logger.warning("The merged weights in %s are damaged: they are written again.", folder)
    texts = texts_of(experiment, name)
    scores = json.loads((adapter / "adapter_config.json").read_text())["task_type"] == "SEQ_CLS"
    attention = "eager" if device() == CPU else "sdpa"  # Plain attention, as users of the merged model have it.
    with replacing(folder) as unfinished:
        unmerged, plain = _write_merged(experiment.train, adapter, dtype, unfinished, texts, scores=scores)
        _add_tokenizer_and_config(base, unfinished, template_settings)
        model: Any = load_model(unfinished, scores=scores, dtype=dtype, attn_implementation=attention)
        agreement = compare(logits(model.to(device()).eval(), texts, scores=scores), unmerged, plain)
        require_agreement(agreement, dtype)
        facts |= {
            "model_sha256": folder_sha256(unfinished),
            "agreement": asdict(agreement),
            "tolerance": {"furthest": TOLERANCE[dtype], "lost": LOST},
            "code": code_version().model_dump(),
            "versions": package_versions(),
        }
        (unfinished / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        (unfinished / CARD).write_text(merged_card(experiment, base, facts))
    return folder


def summary(folder: Path) -> str:
    """Describe merged weights in one line."""
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
    """Tokenise up to `TEXTS` texts (prompt and answer) of the kind the stage is for. Raises MissingInput."""
    tokenizer = load_tokenizer(experiment.train)
    if STAGES[name].trains_actor and extras(experiment.environment).demonstrations:
        from ..actor import labelled_text, scripted_play

        return [labelled_text(tokenizer, played).input_ids for played in scripted_play(experiment, TEXTS)]
    if name == "warm":
        texts = inputs.written_advice(experiment)
    else:
        texts = [AdviceText(rated.reflection.prompt, rated.reflection.text) for rated in inputs.rated(experiment)]
    texts = list(dict.fromkeys(texts))
    # Spread evenly over all texts.
    return [sample.ids for sample in samples(tokenizer, texts[:: -(-len(texts) // TEXTS)])]


def compare(merged: Tensor, unmerged: Tensor, plain: Tensor) -> Agreement:
    """Compare logits (texts, positions or 1, V or 1); `plain` are those of the base without the adapter."""
    difference = (merged - unmerged).abs()
    return Agreement(
        texts=len(unmerged),
        furthest=difference.max().item(),
        mean=difference.mean().item(),
        mean_of_adapter=(plain - unmerged).abs().mean().item(),
        same_choice=(merged.argmax(-1) == unmerged.argmax(-1)).float().mean().item(),
    )


def require_agreement(agreement: Agreement, dtype: str) -> None:
    """Raise ConfigError if the merged logits differ by more than the tolerances allow."""
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


def _require_as_trained(adapter: Adapter, facts: dict[str, Any]) -> None:
    metrics = adapter.metrics
    for what, sha256, trained in (
        ("adapter", facts["adapter_sha256"], metrics.adapter_sha256 or ""),
        ("base model", facts["base_sha256"], metrics.inputs.get("base", "")),
    ):
        if sha256 != trained:
            raise ProvenanceError(
                f"The {what} of {adapter.folder} has sha256 {sha256[:12]}, but {trained[:12] or 'none'} was recorded "
                f"in training: restore it, or run `retroformer train {facts['stage']} EXPERIMENT.yaml` again."
            )


def _facts(folder: Path) -> dict[str, Any]:
    """Read merge.json; return {} if it cannot be read."""
    try:
        return dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _write_merged(
    train: Train, adapter: Path, dtype: Dtype, folder: Path, texts: Sequence[Sequence[int]], *, scores: bool
) -> tuple[Tensor, Tensor]:
    """Merge and save; return the logits of base plus adapter before merging, and those of the base alone."""
    if train.quantization == "none":
        base = load_base(train.model_copy(update={"dtype": dtype}), scores=scores)
    else:
        base = load_base(train, scores=scores).dequantize().to(getattr(torch, dtype))
    require_fit(base, adapter, scores=scores)
    adapted = load_adapter(base, adapter, trainable=False).eval()
    unmerged = logits(adapted, texts, scores=scores)
    with adapted.disable_adapter():
        plain = logits(adapted, texts, scores=scores)
    merged: Any = adapted.merge_and_unload(safe_merge=True)
    merged.config.use_cache = True
    merged.save_pretrained(folder)
    return unmerged, plain


def _add_tokenizer_and_config(base: Path, folder: Path, settings: Mapping[str, JsonValue]) -> None:
    """Copy the base's tokenizer, and the entries of its config that transformers dropped but older programs read."""
    for path in (path for pattern in TOKENIZER_FILES for path in base.glob(pattern)):
        shutil.copyfile(path, folder / path.name)
    generation = next((path for path in (base / GENERATION, folder / GENERATION) if path.is_file()), None)
    own = json.loads(generation.read_text(encoding="utf-8")) if generation else {}
    ends = end_tokens(base, load_base_tokenizer(base, settings))
    (folder / GENERATION).write_text(json.dumps(own | {"eos_token_id": list(ends)}, indent=2) + "\n", encoding="utf-8")
    if template := prompt_template(base, settings):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    of_base, saved = (json.loads((at / "config.json").read_text(encoding="utf-8")) for at in (base, folder))
    kept = {name: value for name, value in of_base.items() if name not in ("torch_dtype", "quantization_config")}
    (folder / "config.json").write_text(json.dumps(kept | saved, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def logits(model: Any, texts: Sequence[Sequence[int]], *, scores: bool) -> Tensor:
    """Return the logits at the last positions of each text, (texts, positions, V), or with `scores`, (texts, 1, 1)."""
    if not texts:
        raise MissingInput("There are no texts of this run to compare logits on: collect some first.")
    kept = {} if scores else {"logits_to_keep": min(POSITIONS, *(len(text) for text in texts))}
    rows = []
    for text in texts:
        output = model(input_ids=torch.tensor([text], device=device()), use_cache=False, **kept)
        rows.append(output.logits.float().cpu().reshape(1, -1, output.logits.shape[-1]))
    return torch.cat(rows)
