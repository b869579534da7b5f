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
import threading
import time
from pathlib import Path
from typing import IO, Any

from retroformer.environments.registry import section_of, taskset
from retroformer.errors import EnvironmentFailure
from retroformer.files.bounded import MIB, size
from retroformer.method.protocols import Environment
from retroformer.method.records import Task

LINE_BYTES = 128 * MIB
"""Maximum length of an answer; an agent's output of the largest size stands in it twice."""
_LOOK_SECONDS = 0.5
"""Time between two looks at the process that is served."""


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
        line = json.dumps(answer | {"call": request["call"]})
        if len(line) >= LINE_BYTES:
            busy.pop(episode, None)
            answer = {"error": f"it answered more than {size(LINE_BYTES)}, the limit"}
            line = json.dumps(answer | {"call": request["call"]})
        print(line, file=answers, flush=True)


def main() -> None:
    """Serve the process with the id of the second argument, with the folder of the first one for temporary files.

    The folder is removed at the end, and the process ends with the one that it serves, also within an attempt. An agent
    reads empty standard input, and what it or the planner's library prints goes to standard error.
    """
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(mode=0o700)
    tempfile.tempdir = str(folder)
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        with requests, answers, contextlib.suppress(BrokenPipeError):
            serve(requests, answers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with(parent: int, folder: Path) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
