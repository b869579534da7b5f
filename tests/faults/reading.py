"""What a store says, for comparison: every fact, rating and account."""

from contextlib import closing
from pathlib import Path
from typing import Any

from retroformer.config.file import load
from retroformer.errors import run_command
from retroformer.run.store import open_whole_store
from tests.faults.invariant import rated


def what_is_read(config: str, run: str, url: str) -> Any:
    """Return all facts of a run in JSON's types; a refusal ends the program with its sentence."""
    answer: list[Any] = []

    def read(_: object) -> None:
        with closing(open_whole_store(load(Path(config), [f"run={run}", f"store={url}"]))) as store:
            answer.append(
                {
                    arm: {
                        "attempts": {
                            str(key): attempt.model_dump(mode="json") for key, attempt in store.stream_trajectories(arm)
                        },
                        "reflections": [
                            stored.reflection.model_dump(mode="json") for stored in store.stream_reflections(arm)
                        ],
                        "usage": store.usage(arm).model_dump(mode="json"),
                    }
                    for arm in store.arms()
                }
                | {"ratings": {str(key): value for key, value in rated(store).items()}}
            )

    run_command(read)
    return answer[0]
