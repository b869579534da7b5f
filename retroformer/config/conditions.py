"""Conditions of a fact: everything it depends on. The same command can make two facts with equal conditions.

Texts, models and data are identified by the sha256 of their content. The first fact of an arm binds the arm to its
conditions in the store, and facts with different conditions are never mixed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retroformer.agents.actors import actor_kinds
from retroformer.config.experiment import Experiment
from retroformer.config.parts import reads_pack
from retroformer.config.sections.base import Endpoint
from retroformer.environments.registry import environment_versions, extras, fingerprint
from retroformer.errors import ConfigError, MissingInput, UnknownTask
from retroformer.files.text import differences
from retroformer.method.prompts import load_pack
from retroformer.method.rating import Rerating
from retroformer.method.records import Outcome
from retroformer.run.provenance import NOT_PROVEN, Proven, package_versions
from retroformer.run.store import Store

STORED, SUCCESS, SUCCESS_BY_SECOND_RETRY = "stored", "success", "success_by_second_retry"


def rerating(experiment: Experiment) -> Rerating | None:
    """Return the rule of `train.rated_by` by which stored reflections are rated anew; None for their stored ratings.

    Raises ConfigError if the environment has no return of this name, or attempts hold no trace of it.
    """
    section, name = experiment.environment, experiment.train.rated_by
    others = extras(section).returns
    if name == STORED:
        return None
    if name in (SUCCESS, SUCCESS_BY_SECOND_RETRY):
        return Rerating(
            lambda attempt: float(attempt.outcome is Outcome.SUCCESS), second_retry=name == SUCCESS_BY_SECOND_RETRY
        )
    if name not in others:
        raise ConfigError(
            f"train.rated_by: {section.name} has no return {name!r}; choose one of "
            f"{', '.join((STORED, SUCCESS, SUCCESS_BY_SECOND_RETRY, *others))}."
        )
    return Rerating(others[name](section, experiment.seed))


_SERVING_PACKAGES = ("torch", "transformers", "peft")
"""Packages whose version can change the answers of a served model."""

_OMITTED_ENDPOINT_SETTINGS = ("base_url", "replicas", "api_key_env", "timeout_seconds", "dollars_per_million")
"""Settings that do not change a model's answers: its addresses, key, time limit and price."""
_REQUEST = ("model", "api", "extra_body")
"""Endpoint settings that identify a model by its name and by what it is asked for."""
_OMITTED_ENVIRONMENT_SETTINGS = ("data", "split", "task_types", "contact", "requests_per_second")
"""Settings left out: `data` is identified by content; the others choose tasks or limit requests to a public site."""
_ADDED_ENVIRONMENT_SETTINGS = {"wording": "demonstrated"}
"""Settings that were added later, left out at the value that older facts were made with."""
_VIEW_SETTINGS = ("view", "history", "prompt_characters", "prompts_sha256", "stop")
"""Reflector settings that decide how it sees a failure and where its text ends."""
_TRAINING_PARTS = ("environment", "actor", "evaluator", "reflector", "loop")
"""Conditions in which training facts must agree with the config."""
_LOOP_SETTINGS = ("memory", "last_attempt", "repetitions", "actions")


def conditions(
    experiment: Experiment,
    proven: Proven = NOT_PROVEN,
    *,
    splits: Sequence[str] = (),
    writer: Endpoint | None = None,
) -> dict[str, Any]:
    """Return the conditions under which this experiment makes facts now.

    `proven` has the models of servers that can say what they serve, `splits` the splits whose data are used (by default
    the environment's), and `writer` the endpoint of the model that writes the advice, if it is not the reflector's.
    Raises MissingInput, or ServiceError if the environment's server cannot be asked for its version.
    """
    record = _settings(experiment, proven, writer)
    record["versions"] = package_versions(("retroformer",)) | environment_versions(experiment.environment)
    record["environment"]["data_sha256"] = _data_sha256(experiment, splits or (experiment.environment.split,))
    return record


def _settings(experiment: Experiment, proven: Proven = NOT_PROVEN, writer: Endpoint | None = None) -> dict[str, Any]:
    """Return the conditions without data hashes and versions, as this machine may lack the data and the programs."""
    config = experiment.model_dump(mode="json", exclude={"reflector": {"teacher"}})
    reflector_config = config["reflector"] | {"endpoint": _endpoint(writer or experiment.reflector.endpoint, proven)}
    if reads_pack(experiment):
        reflector_config["prompts_sha256"] = prompts_sha256(experiment)
    return {
        "seed": experiment.seed,
        "environment": _environment(experiment),
        "actor": _actor(experiment, config["actor"], proven),
        "evaluator": _evaluator(experiment, proven),
        "reflector": reflector_config,
        "loop": {name: config["loop"][name] for name in _LOOP_SETTINGS},
    }


def prompts_sha256(experiment: Experiment) -> str:
    """Return the sha256 of the texts of the config's prompt pack. Raises MissingInput."""
    return load_pack(experiment.actor.prompts, experiment.environment.name).sha256


def check_training_facts(
    store: Store, experiment: Experiment, arms: Sequence[str], parts: Sequence[str] = _TRAINING_PARTS
) -> None:
    """Refuse to train on facts whose conditions differ from the config's in these parts. Raises ConfigError.

    Seeds may differ, as several can be trained on one store, and so may the model that wrote the reflections. Data that
    are not on this machine are not compared. Imported logs have no conditions but their return.
    """
    for arm in arms:
        bound = store.conditions(arm)
        if bound is None or "environment" not in bound:
            _check_return_of_logs(bound or {}, experiment, arm)
            continue
        environment, wanted_environment = _comparable(bound["environment"], experiment)
        wanted = _training_conditions(_settings(experiment)) | {"environment": wanted_environment}
        stored = _training_conditions(bound) | {"environment": environment}
        compared = [{part: record[part] for part in parts} for record in (stored, wanted)]
        if changed := ", ".join(differences(compared[0], compared[1])):
            raise ConfigError(
                f"The {arm!r} facts of the run {store.experiment!r} were made with {changed}: train with the config "
                "they were collected with, or collect anew under another run=NAME."
            )


def _check_return_of_logs(bound: Mapping[str, Any], experiment: Experiment, arm: str) -> None:
    """Refuse logs that are rated by another return than the config's, unless `train.rated_by` rates them anew."""
    name = bound.get("recorded", {}).get("return")
    if name is None or experiment.train.rated_by != STORED or experiment.environment.accepts_logs_rated_by(name):
        return
    raise ConfigError(
        f"The {arm!r} facts are rated by {name!r}, which is not the return of this config: name the return in "
        "train.rated_by, which rates them anew without playing again."
    )


def check_imported(record: Mapping[str, Any], experiment: Experiment, arm: str) -> None:
    """Refuse facts whose environment, its settings or its data differ from the config's. Raises ConfigError.

    Data that are not on this machine are not compared. The rest is checked when a stage adds to the imported arm.
    """
    if "environment" not in record:
        return
    stored, wanted = _comparable(record["environment"], experiment)
    if experiment.environment.seeded_tasks:
        stored, wanted = stored | {"seed": record.get("seed")}, wanted | {"seed": experiment.seed}
    if changed := ", ".join(differences(stored, wanted, "environment")):
        raise ConfigError(
            f"The {arm!r} facts were made with {changed}: import them into a run with the config they were made with."
        )


def is_record_of_conditions(record: object) -> bool:
    """Return True if a value has the shape of conditions: all sections but the reflector's, or none as for logs."""
    if not isinstance(record, dict):
        return False
    if "environment" not in record:
        return True
    sections = [record.get(name) for name in ("environment", "actor", "loop")] + [record.get("reflector", {})]
    return (
        all(isinstance(section, dict) for section in sections)
        and isinstance(record["environment"].get("data_sha256"), dict)
        and isinstance(record.get("evaluator"), str | dict)
    )


def _comparable(environment: Mapping[str, Any], experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stored and the configured environment, without data hashes if the data are not on this machine."""
    stored, wanted = dict(environment), _environment(experiment)
    data = stored.pop("data_sha256", {})
    try:
        wanted["data_sha256"] = _data_sha256(experiment, tuple(data))
    except (MissingInput, UnknownTask):
        return stored, wanted
    return stored | {"data_sha256": data}, wanted


def _environment(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that affect the environment's answers."""
    section = experiment.environment
    settings = section.model_dump(mode="json", exclude={*_OMITTED_ENVIRONMENT_SETTINGS}).items()
    return {name: value for name, value in settings if _ADDED_ENVIRONMENT_SETTINGS.get(name, ...) != value}


def _data_sha256(experiment: Experiment, splits: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of the data of each split. Raises MissingInput, UnknownTask."""
    section = experiment.environment
    return {split: fingerprint(section.model_copy(update={"split": split}), experiment.seed) for split in splits}


def _training_conditions(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that do not depend on seeds, on how models were served, or on the stage's sampling."""
    actor, judge = record["actor"], record["evaluator"]
    return {
        "actor": actor | {"endpoint": _by_name(actor["endpoint"])} if "endpoint" in actor else actor,
        "evaluator": judge if isinstance(judge, str) else judge | {"endpoint": _by_name(judge["endpoint"])},
        "reflector": {name: record.get("reflector", {}).get(name) for name in _VIEW_SETTINGS},
        "loop": record["loop"],
    }


def _by_name(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model behind an endpoint without the fields that only a running server can report."""
    return {name: endpoint[name] for name in _REQUEST if name in endpoint}


def _endpoint(endpoint: Endpoint, proven: Proven) -> dict[str, Any]:
    """Return the identity of an endpoint's model: by content where its server says it, by name where it does not."""
    settings = endpoint.model_dump(mode="json").items()
    named = {name: value for name, value in settings if name not in _OMITTED_ENDPOINT_SETTINGS}
    provenance = proven.get(endpoint.base_url)
    served = provenance.models.get(endpoint.model) if provenance else None
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


def _actor(experiment: Experiment, config: dict[str, Any], proven: Proven) -> dict[str, Any]:
    kind = actor_kinds(experiment).get(experiment.actor.kind)
    if kind is None or not kind.asks_model:
        return {"kind": experiment.actor.kind}
    named = {name: value for name, value in config.items() if name != "prompts"}
    if kind.reads_pack:
        named["prompts_sha256"] = prompts_sha256(experiment)
    return named | {"endpoint": _endpoint(experiment.actor.endpoint, proven)}


def _evaluator(experiment: Experiment, proven: Proven) -> str | dict[str, Any]:
    if experiment.evaluator.kind != "model":
        return experiment.evaluator.kind
    judge = _endpoint(experiment.actor.endpoint, proven)
    return {"kind": "model", "endpoint": judge, "prompts_sha256": prompts_sha256(experiment)}
