"""Before the first trial: is the served adapter the trained one, and does it change what the base says?"""

from typing import NamedTuple

from retroformer.arms import COLLECT, PROBES, WRITTEN
from retroformer.assembly import Parts
from retroformer.best_of import best_of, model_folder, reward_folder, trained_sha256
from retroformer.config import Experiment
from retroformer.errors import EndpointFailure, ProvenanceError
from retroformer.provenance import folder_sha256
from retroformer.records import Message
from retroformer.store import Store

_PROBE_TOKENS = 24


class Verified(NamedTuple):
    """What is known of the model behind an arm."""

    model: str
    adapter_sha256: str | None
    """Of a best-of-n with its reward model's."""
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

    async def probed(model: str) -> str:
        asked = made.connections.model(experiment.reflector.endpoint, model)
        try:
            answer = await asked.complete(prompt, temperature=0.0, max_new_tokens=_PROBE_TOKENS)
        except EndpointFailure as failure:
            store.charge(PROBES, failure.usage)
            raise
        store.charge(PROBES, answer.usage)
        return answer.text

    own_server = experiment.reflector.endpoint.base_url is None
    base = await probed("base") if own_server else None
    verified = []
    for model in models:
        answer = await probed(model)
        if own_server:
            served = _check(experiment, made, model)
            pinned = await probed(f"{model}@{served[:12]}") if served else answer
            if pinned != answer:
                raise ProvenanceError(
                    f"{model!r} and its pinned name answer the probe differently: restart the server."
                )
            # The greedy answer of the best of the base's answers is the base's own.
            trained = served is not None and not model.startswith("base+")
            verified.append(Verified(model, served, True, answer, answer != base if trained else None))
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
    """The hash of what is served by a name, None for the plain base, once it is that of the folders behind the name."""
    served, chosen = made.adapter_sha256[model], best_of(model)
    name = model.partition("@")[0] if chosen is None else chosen.model
    if served is None or name == "reflector":
        return served
    folder, judge = model_folder(experiment, name), reward_folder(experiment, name) if chosen else None
    adapter = None if name == "base" else folder_sha256(folder)
    trained = trained_sha256(adapter, folder_sha256(judge) if judge else None)
    if served != trained:
        where = f"{folder} holds" + (f", or another reward model than {judge}" if judge else "")
        raise ProvenanceError(
            f"The server answers with another adapter than {where} (sha256 {served[:12]}, not {str(trained)[:12]}): "
            "restart it with `python -m serve`."
        )
    return served


def _probe_prompt(store: Store) -> tuple[Message, ...]:
    """A prompt that the reflector was trained on, where the store has one."""
    for arm in (COLLECT, WRITTEN):
        if stored := next(store.stream_reflections(arm), None):
            return stored.reflection.prompt
    return (Message(role="user", content="The last attempt failed. What should the next attempt do first?"),)
