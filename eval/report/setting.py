"""Chapters on the setting: who played, the served models, the configs of the training stages, and the origin."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from retroformer.agents.actors import actor_kind
from retroformer.agents.arms.arm import Arm
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import adapter_name
from retroformer.environments.extras import TaskFacts
from retroformer.errors import MissingInput
from retroformer.files import document as doc
from retroformer.files.bounded import read_yaml
from retroformer.run.adapters import served_folder
from retroformer.run.provenance import code_version, package_versions
from retroformer.run.stage_metrics import METRICS, read_metrics

from ..play.verify import VerifiedModel
from .report_input import ReportInput, each_seed
from .training import adapters_in, sort_by_stage, trained_adapters

_HASH_SHOWN = 12
_PROBE_SHOWN = 200
"""Most characters shown of an answer to the probe."""

_EVALUATORS = {
    "oracle": "The agent is told the true outcome of its attempts",
    "heuristic": "The agent judges an attempt as failed if it repeats itself or is too long",
    "tests": "The agent judges its programs by tests that it wrote itself",
    "model": "A language model judges the attempts",
}
_CONFIG_FILE = "config.yaml"
_VALUE_SHOWN = 120
"""Most characters shown of a value; the whole config has all."""
_CONFIGS_NOTE = (
    "The config that each stage stored beside its adapter. Sections that training does not read, ",
    doc.code("eval"),
    " and ",
    doc.code("gate"),
    ", are not compared.",
)
_IGNORED_SECTIONS = ("eval.", "gate.")


class ArmDescriptions:
    """Chapter on the actor of all arms and the source of each arm's advice."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._evaluation = evaluation
        self._authors = defaultdict[str, Counter[str]](Counter)
        """Number of pieces of advice by arm and by the endpoint of their author."""

    def add(self, facts: TaskFacts) -> None:
        for arm, seed in each_seed(self._evaluation.results, facts):
            self._authors[arm.name].update(reflection.author.endpoint for reflection in seed.reflections.values())

    def chapters(self) -> Iterator[doc.Chapter]:
        experiment = self._evaluation.experiment
        rows: list[doc.Row] = [
            {
                "arm": doc.arm_cell(name),
                "advice": doc.join_words("", (arm.describe(), arm.remark(self._authors[name]))),
                "actor in the retries": _retries(arm),
            }
            for name, arm in experiment.eval.arms.items()
        ]
        arms = doc.table(rows, "The arms: where their advice comes from.")
        yield doc.chapter("Who played", _actor_sentence(experiment, self._evaluation.actor_sha256), arms)


def served_models(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the models that wrote advice, whether their endpoint proves their identity, and their training tasks."""
    changed = {True: "yes", False: "no: same answer as the base", None: doc.DASH}
    rows: list[doc.Row] = [
        {
            "model": model.model,
            "adapter sha256": (model.adapter_sha256 or "none")[:_HASH_SHOWN],
            "is it the trained one": _proof(model),
            "greedy answer to the probe": doc.quoted(model.probe, _PROBE_SHOWN),
            "differs from base": changed[model.differs_from_base],
            "trained on": _trained_on(evaluation.experiment, model),
        }
        for model in evaluation.verified
    ]
    if rows:
        yield doc.chapter("Served models", doc.table(rows, "The models that wrote advice."))


def _proof(model: VerifiedModel) -> str:
    if not model.verified:
        return "not verified: the endpoint cannot prove it"
    if model.adapter_sha256 is None:
        return "the base, as the server reports"
    if model.compared:
        return "yes: hash and pinned name match the folder of this run"
    return "as the server reports: there is no folder here to compare it with"


def _trained_on(experiment: Experiment, model: VerifiedModel) -> str:
    """Render the number of training tasks that the adapter's metrics record; evaluation refuses to play any of them."""
    if model.adapter_sha256 is None:
        return doc.DASH
    folder = served_folder(experiment, adapter_name(model.model))
    recorded = read_metrics(folder).training_domains if (folder / METRICS).is_file() else None
    if recorded is None:
        return "not recorded"
    return f"{sum(len(of_one.tasks) for of_one in recorded):,} tasks, none of these"


def _actor_sentence(experiment: Experiment, adapter_sha256: str | None) -> doc.Words:
    kind = experiment.evaluator.kind
    limit: doc.Words = (
        f" An attempt has at most {experiment.loop.actions} actions (",
        doc.code("loop.actions"),
        f"; the environment itself ends it after {experiment.environment.max_steps}).",
    )
    return (
        *_actor(experiment, adapter_sha256),
        *(() if actor_kind(experiment).plays_whole_attempts else limit),
        f" {_EVALUATORS[kind]} (evaluator ",
        doc.code(kind),
        f": {experiment.environment.success}), as in the papers." if kind == "oracle" else ").",
    )


def _actor(experiment: Experiment, adapter_sha256: str | None) -> doc.Spans:
    settings = experiment.actor
    kind, model = doc.code(settings.kind), doc.code(settings.endpoint.model)
    if not (actor := actor_kind(experiment)).asks_model:
        if actor.plays_whole_attempts:
            return (
                "The actor is an agent (kind ",
                kind,
                ") that plays each attempt by itself and reads advice as text.",
            )
        reading = f"): it samples nothing and reads advice as text. {actor.reading}".rstrip()
        return ("The actor is a program (kind ", kind, reading)
    served: doc.Spans = (model, f" at {settings.endpoint.base_url}, which cannot prove what it serves")
    if adapter_sha256 is not None:
        served = ("the adapter ", model, ", sha256 ", doc.code(adapter_sha256[:_HASH_SHOWN]), ", served by this run")
    elif settings.endpoint.base_url is None:
        served = (model, ", served by this run without an adapter")
    choice = {
        "free": "; it may write any text as an action (choice ",
        "admissible": "; it chooses among the currently possible actions (choice ",
    }[settings.choice]
    end = f"), at temperature {settings.temperature:g}."
    return ("The actor is a language model (kind ", kind, "): ", *served, choice, doc.code(settings.choice), end)


def _retries(arm: Arm) -> doc.Words:
    changes: list[doc.Spans] = []
    if isinstance(arm.actor_model, str):
        changes.append(("the model ", doc.code(arm.actor_model)))
    elif arm.actor_model is not None:
        models = doc.join_words(", ", map(doc.code, arm.actor_model))
        changes.append(("the models ", *models, "; mean over these training seeds"))
    if arm.prompts is not None:
        changes.append(("the prompts ", doc.code(str(arm.prompts)), " from the first attempt on"))
    if arm.actor_temperature is not None:
        changes.append((f"at temperature {arm.actor_temperature:g}",))
    if arm.last_attempt is not None:
        changes.append(("sees its last attempt" if arm.last_attempt else "does not see its last attempt",))
    return doc.join_words(", ", changes) or "as at trial 0"


def stage_configs(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the keys on which the configs of the stages and of the evaluation differ, if a stage ran.

    The stages are those of the report's models, and the other finished ones of the run.
    """
    experiment = evaluation.experiment
    trained = trained_adapters(experiment, evaluation.models)
    finished = adapters_in([path.parent for path in experiment.folder.glob(f"*/{METRICS}")])
    stages = {adapter.folder.resolve(): adapter for adapter in sort_by_stage([*finished, *trained])}
    if not stages:
        return
    # Stages of one config share a column.
    users = dict[str, list[str]]()
    for folder in stages:
        if config := _config(folder / _CONFIG_FILE):
            users.setdefault(json.dumps(config, default=str), []).append("/".join(folder.parts[-2:]))
    named = {", ".join(names): json.loads(config) for config, names in users.items()}
    yield doc.chapter("What each stage ran with", _CONFIGS_NOTE, _differences(experiment, named))


def origin(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the commit, the package versions and the resolved config."""
    version, experiment = code_version(), evaluation.experiment
    changed = " with uncommitted changes" if version.dirty else ""
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    traced = f"{changed}. Versions: {versions}. Every number can be traced to the attempts stored in "
    sentence = ("Commit ", doc.code(version.commit), traced, doc.code(str(experiment.store_url)), ".")
    config = yaml.safe_dump(experiment.as_file(), sort_keys=False, allow_unicode=True)
    folded = doc.Folded(title="The config of the evaluation", text=config, language="yaml")
    yield doc.chapter("Where this comes from", sentence, folded)


def _differences(experiment: Experiment, named: Mapping[str, Mapping[str, Any]]) -> doc.Part | doc.Words:
    """Return the keys on which the configs differ, with the value in each."""
    configs = {"evaluation": experiment.as_file(), **named}
    flat = {title: dict(_flat(config)) for title, config in configs.items()}
    rows = list[doc.Row]()
    for key in dict.fromkeys(chain.from_iterable(flat.values())):
        values = {title: _value(of_one.get(key, doc.DASH)) for title, of_one in flat.items()}
        if len(set(values.values())) > 1 and not key.startswith(_IGNORED_SECTIONS):
            rows.append(
                {"key": (doc.code(key),), **{name: (doc.code(shorten(v, _VALUE_SHOWN)),) for name, v in values.items()}}
            )
    caption = "Where the configs differ; a dash stands for a key that a config lacks."
    return doc.table(rows, caption) if rows else "The stages ran with the config of the evaluation."


def _config(path: Path) -> Mapping[str, Any]:
    """Return a stored config as it was written; empty if it is missing or damaged."""
    try:
        config = read_yaml(path)
    except (OSError, MissingInput, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections by their dotted keys."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
