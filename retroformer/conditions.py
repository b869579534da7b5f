"""What a fact depends on, by content: two facts with equal conditions could have been made by the same command.

Texts, models and data are named by the sha256 of what they hold, so that an edited prompt pack at the same path, or
another base model under the same name, is another condition. Facts of different conditions never mix: the store
binds an arm to its conditions with the first fact, and collect, train, import, export and eval check them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retroformer.canonical import sha256_of
from retroformer.config import Endpoint, Experiment
from retroformer.environments import environment_versions, fingerprint
from retroformer.errors import ConfigError, MissingInput, UnknownTask
from retroformer.prompts import load_pack
from retroformer.provenance import Provenance, package_versions
from retroformer.store import Store
from retroformer.store.facts import differences

_SERVING_PACKAGES = ("torch", "transformers", "peft")
"""Packages whose version can change what a served model answers."""

_NOT_OF_ENDPOINT = ("base_url", "api_key_env", "timeout_seconds", "dollars_per_million")
"""Where a model answers and what it costs does not change what it says."""
_NOT_OF_ENVIRONMENT = ("data", "split", "task_types", "contact", "requests_per_second")
"""Data count by content; the others choose tasks, or are manners."""
_SHOWN_TO_REFLECTOR = ("view", "prompt_characters", "prompts_sha256", "stop")
"""What decides how a failure is shown to the reflector, and where its text ends."""
_OF_TRAINING = ("environment", "actor", "evaluator", "reflector", "loop")
"""What facts to train on must have in common with the config."""
_OF_LOOP = ("memory", "last_attempt", "repetitions", "actions")


def conditions(
    experiment: Experiment,
    provenance: Provenance | None = None,
    *,
    splits: Sequence[str] = (),
    reflector: str | None = None,
) -> dict[str, Any]:
    """The conditions under which this experiment makes facts now.

    Args:
        experiment: the config.
        provenance: what the experiment's own server says that it serves, where one runs.
        splits: whose data are played; the environment's own split by default.
        reflector: the name of the model that advises, where it is not the config's.

    Raises:
        MissingInput: a prompt pack or the data are not there.
    """
    record = _settings(experiment, provenance, reflector)
    record["environment"]["data_sha256"] = _data_sha256(experiment, splits or (experiment.environment.split,))
    return record


def _settings(
    experiment: Experiment, provenance: Provenance | None = None, reflector: str | None = None
) -> dict[str, Any]:
    """The conditions without the data, which may not be on this machine."""
    config = experiment.model_dump(mode="json")
    advising = experiment.reflector.endpoint
    if reflector is not None:
        advising = advising.model_copy(update={"model": reflector})
    reflector_config = config["reflector"] | {"endpoint": _endpoint(advising, provenance)}
    if experiment.reflector.view != "compact":
        reflector_config["prompts_sha256"] = prompts_sha256(experiment)
    return {
        "seed": experiment.seed,
        "environment": _environment(config["environment"]),
        "actor": _actor(experiment, config["actor"], provenance),
        "evaluator": _evaluator(experiment, config["evaluator"], provenance),
        "reflector": reflector_config,
        "loop": {name: config["loop"][name] for name in _OF_LOOP},
        "versions": package_versions(("retroformer",)) | environment_versions(experiment.environment),
    }


def prompts_sha256(experiment: Experiment) -> str:
    """The sha256 of the prompt pack's words, whatever its name, place and comments. Raises MissingInput."""
    pack = load_pack(experiment.actor.prompts, experiment.environment.name)
    return sha256_of(pack.model_dump(mode="json"))


def check_training_facts(
    store: Store, experiment: Experiment, arms: Sequence[str], parts: Sequence[str] = _OF_TRAINING
) -> None:
    """Refuse to train on facts that were made under other conditions than the config describes.

    Seeds may differ, as several can be trained on one store, and so may what wrote the reflections. Data that are not
    on this machine are not compared. Imported logs have conditions of their own. `parts` are the conditions to compare.

    Raises:
        ConfigError: environment, data, prompts, actor, evaluator or the reflector's view differ.
    """
    for arm in arms:
        bound = store.conditions(arm)
        if bound is None or "environment" not in bound:
            continue
        environment, wanted_environment = _comparable(bound["environment"], experiment)
        wanted = _of_training(_settings(experiment)) | {"environment": wanted_environment}
        stored = _of_training(bound) | {"environment": environment}
        compared = [{part: record[part] for part in parts} for record in (stored, wanted)]
        if changed := ", ".join(differences(compared[0], compared[1])):
            raise ConfigError(
                f"The {arm!r} facts of the run {store.experiment!r} were made with {changed}: train with the config "
                "they were collected with, or collect anew under another run=NAME."
            )


def check_imported(record: Mapping[str, Any], experiment: Experiment, arm: str) -> None:
    """Refuse facts from another environment, other settings of it or other data than the config describes.

    Data that are not on this machine are not compared. The rest is checked when a stage adds to the imported arm.

    Raises:
        ConfigError: the environments differ.
    """
    if "environment" not in record:
        return
    if changed := ", ".join(differences(*_comparable(record["environment"], experiment), "environment")):
        raise ConfigError(
            f"The {arm!r} facts were made with {changed}: import them into a run with the config they were made with."
        )


def is_record_of_conditions(record: object) -> bool:
    """Whether a value has the shape of conditions: all sections, or none, as those of logs and of earlier versions."""
    if not isinstance(record, dict):
        return False
    if "environment" not in record:
        return True
    sections = [record.get(name) for name in ("environment", "actor", "reflector", "loop")]
    return (
        all(isinstance(section, dict) for section in sections)
        and isinstance(record["environment"].get("data_sha256"), dict)
        and isinstance(record.get("evaluator"), str | dict)
    )


def _comparable(environment: Mapping[str, Any], experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is stored about an environment and what the config says, both without data that are not on this machine."""
    stored, wanted = dict(environment), _environment(experiment.environment.model_dump(mode="json"))
    data = stored.pop("data_sha256", {})
    try:
        wanted["data_sha256"] = _data_sha256(experiment, tuple(data))
    except (MissingInput, UnknownTask):
        return stored, wanted
    return stored | {"data_sha256": data}, wanted


def _environment(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide how the environment answers."""
    return {name: value for name, value in config.items() if name not in _NOT_OF_ENVIRONMENT}


def _data_sha256(experiment: Experiment, splits: Sequence[str]) -> dict[str, str]:
    """By split, the hash of its data. Raises MissingInput, UnknownTask."""
    section = experiment.environment
    return {split: fingerprint(section.model_copy(update={"split": split}), experiment.seed) for split in splits}


def _of_training(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a record that does not depend on seeds, on what served the models, or on what the stage samples."""
    actor, judge = record["actor"], record["evaluator"]
    return {
        "actor": actor | {"endpoint": _by_name(actor["endpoint"])} if "endpoint" in actor else actor,
        "evaluator": judge if isinstance(judge, str) else judge | {"endpoint": _by_name(judge["endpoint"])},
        "reflector": {name: record["reflector"].get(name) for name in _SHOWN_TO_REFLECTOR},
        "loop": record["loop"],
    }


def _by_name(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The model behind an endpoint without what only a running server can tell."""
    return {"model": endpoint["model"], "api": endpoint["api"]}


def _endpoint(endpoint: Endpoint, provenance: Provenance | None) -> dict[str, Any]:
    """The model behind an endpoint: by content on our own server, by name elsewhere, which cannot prove what it is."""
    named = {name: value for name, value in endpoint.model_dump(mode="json").items() if name not in _NOT_OF_ENDPOINT}
    served = provenance.models.get(endpoint.model) if provenance and endpoint.base_url is None else None
    if provenance is None or served is None:
        return named
    versions = {name: provenance.versions[name] for name in _SERVING_PACKAGES if name in provenance.versions}
    return named | {
        "base_sha256": served.base_sha256,
        "adapter_sha256": served.trained_sha256,
        "chat_template_sha256": served.chat_template_sha256,
        "dtype": provenance.dtype,
        "quantization": provenance.quantization,
        "versions": versions,
    }


def _actor(experiment: Experiment, config: dict[str, Any], provenance: Provenance | None) -> dict[str, Any]:
    if experiment.actor.kind == "rule":
        return {"kind": "rule"}
    named = {name: value for name, value in config.items() if name != "prompts"}
    if experiment.actor.kind != "household":
        named["prompts_sha256"] = prompts_sha256(experiment)
    return named | {"endpoint": _endpoint(experiment.actor.endpoint, provenance)}


def _evaluator(experiment: Experiment, config: dict[str, Any], provenance: Provenance | None) -> str | dict[str, Any]:
    if experiment.evaluator.kind != "model":
        return experiment.evaluator.kind
    judge = _endpoint(experiment.evaluator.endpoint, provenance)
    return config | {"endpoint": judge, "prompts_sha256": prompts_sha256(experiment)}
