"""Before the first trial: is the served adapter the trained one, and does it change what the base says?"""

from typing import NamedTuple

from retroformer.arms import COLLECT, WRITTEN
from retroformer.assembly import Parts
from retroformer.config import Experiment
from retroformer.errors import ProvenanceError
from retroformer.packaged import adapter_folder
from retroformer.provenance import folder_sha256
from retroformer.records import Message
from retroformer.store import Store

_PROBE_TOKENS = 24


class Verified(NamedTuple):
    """What is known of the model behind an arm."""

    model: str
    adapter_sha256: str | None
    verified: bool
    """False at an endpoint that cannot prove what it serves."""
    probe: str
    """The greedy answer to the probe prompt."""
    differs_from_base: bool | None


async def verify_models(experiment: Experiment, made: Parts, store: Store, models: list[str]) -> list[Verified]:
    """Compare the hashes the server reports with the folders of this run, and ask each model the same probe prompt.

    Raises:
        ProvenanceError: the served adapter is not the trained one.
        MissingInput: an arm wants an adapter that has not been trained.
        EndpointFailure: a model does not answer.
    """
    prompt = _probe_prompt(store)
    own_server = experiment.reflector.endpoint.base_url is None
    base = await _probe(experiment, made, "base", prompt) if own_server else None
    verified = []
    for model in models:
        answer = await _probe(experiment, made, model, prompt)
        if own_server:
            served = _check(experiment, made, model)
            pinned = await _probe(experiment, made, f"{model}@{served[:12]}", prompt) if served else answer
            if pinned != answer:
                raise ProvenanceError(
                    f"{model!r} and its pinned name answer the probe differently: restart the server."
                )
            verified.append(Verified(model, served, True, answer, answer != base if served else None))
        else:
            verified.append(Verified(model, None, False, answer, None))
    return verified


def verify_actor(experiment: Experiment, made: Parts) -> None:
    """Compare the adapter that acts with its folder, where the experiment's own server serves one.

    Raises:
        ProvenanceError: the served adapter is another.
    """
    page = experiment.actor
    if page.kind != "rule" and page.endpoint.base_url is None:
        _check(experiment, made, page.endpoint.model)


def _check(experiment: Experiment, made: Parts, model: str) -> str | None:
    served = made.adapter_sha256[model]
    name = model.partition("@")[0]
    folder = adapter_folder(experiment.serve.adapters.get(name, experiment.folder / name))
    if served is None:
        return None
    if name != "reflector" and served != (trained := folder_sha256(folder)):
        raise ProvenanceError(
            f"The server answers with another adapter than {folder} holds (sha256 {served[:12]}, not {trained[:12]}): "
            "restart it with `python -m serve`."
        )
    return served


async def _probe(experiment: Experiment, made: Parts, model: str, prompt: tuple[Message, ...]) -> str:
    asked = made.connections.model(experiment.reflector.endpoint, model)
    return (await asked.complete(prompt, temperature=0.0, max_new_tokens=_PROBE_TOKENS)).text


def _probe_prompt(store: Store) -> tuple[Message, ...]:
    """A prompt that the reflector was trained on, where the store has one."""
    for arm in (COLLECT, WRITTEN):
        if known := store.reflections(arm):
            return known[0].reflection.prompt
    return (Message(role="user", content="The last attempt failed. What should the next attempt do first?"),)
