"""Runs the experiment's own server during a stage, and reads the provenance that an endpoint reports."""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from retroformer.config.experiment import Experiment
from retroformer.config.imports import stage_package
from retroformer.errors import EndpointFailure, EndpointRefusal, ProvenanceError, ServiceError
from retroformer.run.provenance import Provenance

START_SECONDS = 900.0
"""Time limit of the start: loading a large base from a cold disk, or converting the embedded one, takes minutes."""
STOP_SECONDS = 20.0
TAIL_LINES = 5
_NO_KEY = (401, 403)
READY_LINE = re.compile(r"Serving .* at (http://\S+/v1)$")


@contextlib.asynccontextmanager
async def run_own_server(experiment_path: Path, overrides: Sequence[str], experiment: Experiment) -> AsyncIterator[str]:
    """Run `retroformer serve` on a free local port and yield its base_url, `http://127.0.0.1:PORT/v1`.

    The server stops at the end of the context, and also when this process is killed.

    Raises:
        ServiceError: the server could not start; the message ends with its last lines of output.
    """
    # Only this machine can reach the server, so it needs no API key.
    own = ("serve.port=0", "serve.host=127.0.0.1", "serve.api_key_env=")
    options = ("--more-from-input", "--until-input-closes")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", stage_package("serve"), str(experiment_path), *own, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    # An override may hold a password, and every user of the machine can read a command line.
    process.stdin.write(json.dumps(list(overrides)).encode() + b"\n")
    last_lines: deque[str] = deque(maxlen=TAIL_LINES)
    listener = asyncio.create_task(_pass_warnings_on(process.stderr, last_lines))
    try:
        line = ""
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), START_SECONDS)).decode().strip()
            if not line:
                await listener
        except TimeoutError:
            logs = experiment.folder / "logs"
            last_lines.append(f"not ready after {START_SECONDS:.0f} seconds; its logs are in {logs}")
        ready = READY_LINE.match(line)
        if ready is None:
            reason = " ".join(last_lines) or "no reason given"
            raise ServiceError(f"The server of {experiment_path} could not start: {reason}")
        yield ready[1]
    finally:
        await _stop(process)
        listener.cancel()
        await asyncio.wait([listener])


async def provenance(base_url: str, api_key_env: str | None = None, seconds: float = 30.0) -> Provenance:
    """Ask the endpoint at `base_url` (one of this project's, `http://HOST:PORT/v1`) for the models that it serves.

    `api_key_env` names the environment variable with the API key, if it needs one.

    Raises:
        ConfigError: the environment names no usable key, proxy or certificates.
        EndpointFailure: the endpoint does not answer, or answers 5xx; as EndpointRefusal, it does not accept the key.
        ProvenanceError: the endpoint answers without provenance, so it is not one of this project's.
    """
    from retroformer.endpoint.http_client import NoAnswer, fetch, read_key

    path, mark, query = base_url.partition("?")
    url = f"{path.rstrip('/').removesuffix('/v1')}/provenance{mark}{query}"
    key = read_key(api_key_env) if api_key_env else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = await fetch("GET", url, seconds, headers=headers)
    except NoAnswer as error:
        raise EndpointFailure(f"{url} cannot be asked for its provenance: it {error}.") from None
    if answer.status >= 500:
        raise EndpointFailure(f"{url} answered {answer.status}: {answer.text[:200]}")
    if answer.status in _NO_KEY:
        raise EndpointRefusal(
            f"{url} answered {answer.status}: it needs another API key, in the variable of api_key_env."
        )
    if answer.status != 200:
        raise ProvenanceError(
            f"{url} answered {answer.status}: it does not report what it serves; use `retroformer serve`, "
            "whose models can be checked."
        )
    try:
        return Provenance.model_validate_json(answer.content)
    except ValidationError:
        raise ProvenanceError(f"{url} does not answer with the provenance of models: {answer.text[:200]!r}") from None


async def _pass_warnings_on(stream: asyncio.StreamReader, last_lines: deque[str]) -> None:
    """Write warnings to the terminal, and keep the last lines."""
    while not stream.at_eof():
        try:
            line = (await stream.readline()).decode(errors="replace").rstrip()
        except ValueError:
            continue  # It is longer than 64 KiB. The server would wait for ever if the lines after it were not read.
        last_lines.append(line)
        if line.startswith("WARNING"):
            os.write(2, f"{line}\n".encode())


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
