"""Process that plays episodes for `pool.py`: one JSON request per line on standard input, one JSON answer per line out.

{"call": 7, "episode": 3, "task": {...}}     start or restart episode 3 with this task
{"call": 8, "episode": 3, "action": "look"}  execute one action
{"call": 9, "episode": 3}                    end the episode, its environment may be reused
-> {"call": 8, "transition": {...}} or {"call": 8, "error": "what went wrong"}
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from retroformer.environments.registry import section_of, taskset
from retroformer.errors import EnvironmentFailure
from retroformer.method.protocols import Environment
from retroformer.method.records import Task


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the other side closes. The first line is {"section": ..., "seed": ...}."""
    first = json.loads(requests.readline())
    source = taskset(section_of(first["section"]), first["seed"])
    busy: dict[int, Environment] = {}
    idle: list[Environment] = []  # For reuse: an engine is costly to create.
    for line in requests:
        request = json.loads(line)
        answer, episode = dict[str, Any](), request["episode"]
        try:
            if "task" in request:
                if episode not in busy:
                    busy[episode] = idle.pop() if idle else source.environment()
                answer["transition"] = busy[episode].reset(Task.model_validate(request["task"])).model_dump()
            elif "action" in request:
                answer["transition"] = busy[episode].step(request["action"]).model_dump()
            else:
                idle.append(busy.pop(episode))
        except Exception as error:  # Process boundary: any error belongs to this episode alone.
            busy.pop(episode, None)
            fault = str(error) if isinstance(error, EnvironmentFailure) else f"{type(error).__name__}: {error}"
            answer = {"error": fault}
        print(json.dumps(answer | {"call": request["call"]}), file=answers, flush=True)


def main() -> None:
    """Serve with the folder that the command line names for temporary files, which is removed at the end.

    The planner's library prints to standard output, which is for answers: what it prints goes to standard error.
    """
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700)
    tempfile.tempdir = str(folder)
    try:
        with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers, contextlib.suppress(BrokenPipeError):
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            serve(sys.stdin, answers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
