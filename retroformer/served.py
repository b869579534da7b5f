"""The experiment's own endpoint, started for the length of a stage, and what an endpoint says it serves."""

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

from retroformer.config import Experiment
from retroformer.errors import EndpointFailure, ProvenanceError, ServiceError
from retroformer.provenance import Provenance

START_SECONDS = 900.0
"""Loading a large base from a cold disk, or converting the embedded one, takes minutes."""
STOP_SECONDS = 20.0
TAIL_LINES = 5
READY = re.compile(r"Serving .* at (http://\S+/v1)$")


@contextlib.asynccontextmanager
async def served(experiment_path: Path, overrides: Sequence[str], experiment: Experiment) -> AsyncIterator[str]:
    """Run `python -m serve` on a free port of this machine, and give its base_url, `http://127.0.0.1:PORT/v1`.

    It stops with the context, and also when this process is killed.

    Raises:
        ServiceError: the server could not start; the message ends with what it said.
    """
    process = await _start(experiment_path)
    assert process.stdin is not None
    # An override may hold a password, and every user of the machine can read a command line.
    process.stdin.write(json.dumps(list(overrides)).encode() + b"\n")
    assert process.stderr is not None
    said: deque[str] = deque(maxlen=TAIL_LINES)
    listener = asyncio.create_task(_listen(process.stderr, said))
    try:
        line = await _first_line(process)
        if line is None:
            said.append(f"not ready after {START_SECONDS:.0f} seconds; its logs are in {experiment.folder / 'logs'}")
        elif not line:
            await listener
        ready = READY.match(line or "")
        if ready is None:
            reason = " ".join(said) or "no reason given"
            raise ServiceError(f"The server of {experiment_path} could not start: {reason}")
        yield ready[1]
    finally:
        await _stop(process)
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


async def provenance(base_url: str, api_key: str | None = None) -> Provenance:
    """What the endpoint at `base_url` (one of this project's, `http://HOST:PORT/v1`) says it serves.

    Raises:
        EndpointFailure: nobody answers there, or not now.
        ProvenanceError: it answers, but does not say; it is not one of this project's.
    """
    import httpx

    url = f"{base_url.rstrip('/').removesuffix('/v1')}/provenance"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        # An endpoint on this machine must not be looked for behind a proxy.
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            answer = await client.get(url, headers=headers)
    except httpx.HTTPError as error:
        raise EndpointFailure(f"{url} cannot be asked for its provenance: {type(error).__name__} {error}") from None
    if answer.status_code >= 500:
        raise EndpointFailure(f"{url} answered {answer.status_code}: {answer.text[:200]}")
    if answer.status_code != 200:
        raise ProvenanceError(
            f"{url} answered {answer.status_code}: it does not say what it serves; use `python -m serve`, whose models "
            "can be checked."
        )
    try:
        return Provenance.model_validate_json(answer.content)
    except ValidationError:
        raise ProvenanceError(f"{url} does not answer with the provenance of models: {answer.text[:200]!r}") from None


async def _start(experiment_path: Path) -> asyncio.subprocess.Process:
    # Nobody but this stage can reach it, so it asks for no key.
    own = ("serve.port=0", "serve.host=127.0.0.1", "serve.api_key_env=")
    command = ["serve", str(experiment_path), *own, "--more-from-input"]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        "--until-input-closes",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def _first_line(process: asyncio.subprocess.Process) -> str | None:
    """What the server answers; empty where it ended instead, None where it did neither in time."""
    assert process.stdout is not None
    try:
        return (await asyncio.wait_for(process.stdout.readline(), START_SECONDS)).decode().strip()
    except TimeoutError:
        return None


async def _listen(stream: asyncio.StreamReader, said: deque[str]) -> None:
    """Pass warnings on to the terminal, and keep the last lines."""
    async for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        said.append(line)
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
