"""Imports the recorded runs of other programs into the store, ready for training."""

import json
from contextlib import closing
from pathlib import Path

from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.conditions import prompts_sha256
from retroformer.experiment.parts import LoadedConfig
from retroformer.experiment.storage import open_store
from retroformer.experiment.views import reads_pack, reflection_renderer
from retroformer.recorded import RecordedLogs
from retroformer.store import NewReflection, NewTrajectory, Store


def import_logs(config: LoadedConfig, logs: Path, *, as_json: bool) -> str:
    """Store the attempts and reflections of the logs; return a summary, with a last line of JSON if `as_json`.

    Raises:
        ConfigError: the environment has no reader for logs.
        MissingInput: the logs do not exist.
    """
    section = config.experiment.environment
    read_logs = extras(section).read_logs
    if read_logs is None:
        raise ConfigError(f"{config.path} uses {section.name}, and there is no reader for logs of {section.name}.")
    recorded = read_logs(logs, section)
    with closing(open_store(config.experiment)) as store:
        _keep(store, recorded, config)
    counts = recorded.counts(recorded.rated_by)
    others = {name: recorded.counts(name).model_dump() for name in recorded.return_names}
    lines = [
        f"{len(recorded.attempts)} attempts and {len(recorded.reflections)} reflections are in {store.url}",
        *(f"skipped {count} {what}" for what, count in recorded.skipped.items()),
        *(f"by {name}: {count}" for name, count in others.items()),
    ]
    if as_json:
        summary = counts.model_dump() | {
            "attempts": len(recorded.attempts),
            "return": recorded.rated_by,
            "by_return": others,
            "skipped": recorded.skipped,
        }
        lines.append(json.dumps(summary))
    return "\n".join(lines)


def _keep(store: Store, recorded: RecordedLogs, config: LoadedConfig) -> None:
    """Store attempts and reflections in one transaction."""
    render = reflection_renderer(config.experiment)
    prompt_hash = prompts_sha256(config.experiment) if reads_pack(config.experiment) else None
    logged = {
        "author": recorded.author.model_dump(),
        "return": recorded.rated_by,
        "view": config.experiment.reflector.view,
        "prompts_sha256": prompt_hash,
    }
    for arm in {attempt.key.arm for attempt in recorded.attempts}:
        store.declare(arm, {"recorded": logged})
    facts: list[NewTrajectory | NewReflection] = [
        NewTrajectory(attempt.key, attempt.trajectory) for attempt in recorded.attempts
    ]
    for advice in recorded.reflections:
        prompt = render(advice.failed.trajectory, advice.failed.memory)
        facts.append(NewReflection(advice.key, 0, advice.reflection.model_copy(update={"prompt": prompt})))
    store.add_all(lambda: facts)
