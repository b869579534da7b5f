"""Checks before the first trial that served adapters are the trained ones; probes if they change the base's answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from retroformer.agents.actors import actor_kind
from retroformer.config.experiment import Experiment
from retroformer.config.parts import Parts
from retroformer.config.sections.base import adapter_name, best_of
from retroformer.endpoint.own_server import provenance
from retroformer.errors import EndpointFailure, EndpointRefusal, ProvenanceError, first_line, usage_of
from retroformer.method.records import Message
from retroformer.run.adapter_names import REFLECTOR
from retroformer.run.adapters import has_adapter, is_trained, model_folder, reward_folder
from retroformer.run.arm_names import COLLECT, PROBES, WRITTEN
from retroformer.run.provenance import folder_sha256, trained_sha256
from retroformer.run.store import Store

_PROBE_TOKENS = 24


class VerifiedModel(NamedTuple):
    """Identity and probe answer of a model that writes advice."""

    model: str
    adapter_sha256: str | None
    """Hash of the adapter; for best-of-n, combined with that of the reward model."""
    verified: bool
    """False for an endpoint that cannot prove what it serves."""
    compared: bool
    """True if the adapter's folder is here, so that the hash was compared with it."""
    probe: str
    differs_from_base: bool | None


async def verify_models(
    experiment: Experiment, components: Parts, store: Store, models: list[str]
) -> list[VerifiedModel]:
    """Compare the hashes that the server reports with the folders of this run; send each model the same probe prompt.

    A server elsewhere must report the adapters of the names that training gives; it may answer to others unverified.

    Raises:
        ProvenanceError: the served adapter is not the trained one, or the server does not say.
        EndpointFailure: a model does not respond.
    """
    prompt = _probe_prompt(store)

    async def probe(model: str) -> str:
        language_model = components.connections.model(experiment.reflector.endpoint.named(model))
        try:
            answer = await language_model.complete(prompt, temperature=0.0, max_new_tokens=_PROBE_TOKENS)
        except EndpointFailure as failure:
            store.charge(PROBES, usage_of(failure))
            raise
        store.charge(PROBES, answer.usage)
        return answer.text

    own_server = experiment.reflector.endpoint.base_url is None
    hashes = components.adapter_sha256 if own_server else await _hashes_elsewhere(experiment, models)
    base = await probe("base") if own_server and models else None
    verified = []
    for model in models:
        served = _check(experiment, hashes, model) if model in hashes else None
        # Asked by its pinned name, the server answers with this adapter or refuses.
        answer = await probe(f"{model}@{served[:12]}" if served else model)
        # With greedy decoding, best-of-n over the base gives the base's own answer.
        trained = served is not None and not model.startswith("base+")
        differs = answer != base if trained else None
        compared = served is not None and _folder_to_compare(experiment, model) is not None
        verified.append(VerifiedModel(model, served, model in hashes, compared, answer, differs))
    return verified


def verify_actor(experiment: Experiment, components: Parts) -> None:
    """Compare the adapters of the actor, and of those that act in the retries of an arm, with their folders.

    This is possible only if the experiment's own server serves the actor. Raises ProvenanceError: a served adapter is
    not the one in the folder.
    """
    endpoint = experiment.actor.endpoint
    if actor_kind(experiment).asks_model and endpoint.base_url is None:
        for model in (endpoint.model, *experiment.eval.actor_models):
            _check(experiment, components.adapter_sha256, model)


async def _hashes_elsewhere(experiment: Experiment, models: Sequence[str]) -> Mapping[str, str | None]:
    """Return the hashes that a server elsewhere reports for the trained models among these.

    Raises:
        ProvenanceError: it does not report them.
        EndpointRefusal: it does not accept the API key.
    """
    endpoint = experiment.reflector.endpoint
    trained = [model for model in models if is_trained(experiment, adapter_name(model))]
    if not trained or endpoint.base_url is None:
        return {}
    advice = "serve it there with `retroformer serve`, or add reflector.endpoint.base_url= to the command."
    try:
        reported = await provenance(endpoint.base_url.secret_url(), endpoint.api_key_env)
    except EndpointRefusal:
        raise
    except (ProvenanceError, EndpointFailure) as error:
        raise ProvenanceError(
            f"{endpoint.base_url} does not prove that it answers with the adapter {trained[0]!r} "
            f"({first_line(error)}): {advice}"
        ) from None
    hashes = {name: model.trained_sha256 for name, model in reported.models.items()}
    if missing := [model for model in trained if hashes.get(model) is None]:
        raise ProvenanceError(f"{endpoint.base_url} serves no adapter {missing[0]!r}: {advice}")
    return {model: hashes[model] for model in trained}


def _check(experiment: Experiment, hashes: Mapping[str, str | None], model: str) -> str | None:
    """Return the hash served under a name, or None for the plain base. Raises ProvenanceError if the folders differ."""
    served, chosen = hashes[model], best_of(model)
    if served is None or (folder := _folder_to_compare(experiment, model)) is None:
        return served
    name = adapter_name(model)
    judge = reward_folder(experiment, name) if chosen else None
    adapter = None if name == "base" else folder_sha256(folder)
    trained = trained_sha256(adapter, folder_sha256(judge) if judge else None)
    if served != trained:
        where = f"{folder} holds" + (f", or another reward model than {judge}" if judge else "")
        raise ProvenanceError(
            f"The server answers with another adapter than {where} (sha256 {served[:12]}, not {str(trained)[:12]}): "
            "restart it with `retroformer serve`."
        )
    return served


def _folder_to_compare(experiment: Experiment, model: str) -> Path | None:
    """Return the folder of a model's adapter; None if it is not here, as of one that was trained on another machine."""
    name = adapter_name(model)
    folder = model_folder(experiment, name)
    return folder if name != REFLECTOR and (name == "base" or has_adapter(folder)) else None


def _probe_prompt(store: Store) -> tuple[Message, ...]:
    """Return a prompt that the reflector was trained on, or a fixed one if the store has none."""
    for arm in (COLLECT, WRITTEN):
        # Advice that no model wrote has no prompt, such as that of retries without advice.
        prompts = (stored.reflection.prompt for stored in store.stream_reflections(arm))
        if prompt := next(filter(None, prompts), None):
            return prompt
    return (Message(role="user", content="The last attempt failed. What should the next attempt do first?"),)
