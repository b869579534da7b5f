"""The two processes of an endpoint: FastChat's OpenAI API server, and our worker."""

import http.client
import json
import logging
import os
import secrets
import socket
import threading
from pathlib import Path

from retroformer.config import Experiment, Serve
from retroformer.errors import ConfigError, ServiceError
from serve import adapters
from serve.loopback import is_loopback
from serve.private import Private
from serve.probe import HEALTH, Address
from serve.supervisor import Service, supervise

LOOPBACK = "127.0.0.1"
MARKER_BYTES = 8
KEY_BYTES = 32
START_PROBE_SECONDS = 5.0
"""Between two questions the supervisor sees whether a process has died while starting."""

logger = logging.getLogger(__name__)


def run(experiment: Experiment, page: Path, stop: threading.Event) -> None:
    """Serve the experiment's base and adapters until `stop` is set.

    Raises:
        MissingInput: an adapter or the base model is not there.
        ConfigError: the key's variable is not set, or an adapter's name is not free, or strangers could load adapters.
        ServiceError: the port is taken, or a process could not start, or keeps dying or falling silent.
    """
    names = adapters.names(experiment, page)
    private = Private(
        worker_key=secrets.token_hex(KEY_BYTES), marker=secrets.token_hex(MARKER_BYTES), api_keys=_api_keys(experiment)
    )
    require_key_for_strangers(experiment.serve)
    warn_unless_loopback(experiment.serve.host, bool(private.api_keys))
    logs = experiment.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with listen(experiment.serve.host, experiment.serve.port) as api, listen(LOOPBACK, 0) as worker:
        address = Address(_reachable(experiment.serve.host), api.getsockname()[1], next(iter(private.api_keys), ""))
        worker_address = Address(LOOPBACK, worker.getsockname()[1], private.worker_key)

        def ready() -> None:
            print(f"Serving {', '.join(_models(address))} at {address.url}/v1", flush=True)  # noqa: T201  The answer.

        services = [
            Service(
                "API server",
                [*_api_arguments(experiment.serve), f"--socket={api.fileno()}", f"--worker={worker_address.url}"],
                logs / "api.log",
                _environment(experiment.serve),
                [api.fileno()],
                private.model_dump_json(),
                # Whatever it says of the worker, it answers.
                lambda: address.status(HEALTH) is not None,
            ),
            Service(
                "worker",
                [*_worker_arguments(experiment, names), f"--socket={worker.fileno()}"],
                logs / "worker.log",
                _environment(experiment.serve),
                [worker.fileno()],
                private.model_copy(update={"api_keys": ()}).model_dump_json(),
                lambda: worker_address.status(HEALTH) == http.client.OK,
            ),
        ]
        supervise(services, lambda: address.status(HEALTH, START_PROBE_SECONDS) == http.client.OK, ready, stop)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ServiceError: the port is taken, or the host is none of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ServiceError(
            f"Cannot listen on port {port} of {host}: {reason}; stop what uses it, or take another with "
            "serve.port=PORT (0 for any free one)."
        ) from None


def require_key_for_strangers(page: Serve) -> None:
    """Raises ConfigError where anyone in the network could load adapters from this machine's disk."""
    if page.hand_over and page.api_key_env is None and not is_loopback(page.host):
        raise ConfigError(
            f"serve.hand_over lets whoever reaches serve.host={page.host} load any adapter on this machine: set "
            "serve.api_key_env to the variable with the keys, or stay on 127.0.0.1."
        )


def warn_unless_loopback(host: str, asks_for_key: bool = False) -> None:
    """Say loudly what becomes open to the network."""
    if is_loopback(host):
        return
    who = "Whoever has one of its API keys" if asks_for_key else "EVERYONE there"
    logger.warning(
        "serve.host=%s OPENS THIS SERVER TO THE NETWORK. %s may use it, and whoever listens there can read what is "
        "said, the keys (serve.api_key_env) too. Put a proxy with TLS in front of it, or stay on 127.0.0.1.",
        host,
        who,
    )


def _api_arguments(page: Serve) -> list[str]:
    return [
        "serve.openai_api",
        f"--body-bytes={page.body_bytes}",
        *(["--loopback"] if is_loopback(page.host) else []),
        *(["--hand-over"] if page.hand_over else []),
    ]


def _worker_arguments(experiment: Experiment, names: adapters.Names) -> list[str]:
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    return [
        "serve.worker",
        f"--base={experiment.train.base_model}",
        f"--dtype={experiment.serve.dtype}",
        f"--max-batch={experiment.serve.max_batch}",
        f"--threads={threads}",
        *(f"--adapter={name}={folder}" for name, folder in names.adapters.items()),
        *(f"--alias={alias}={name}" for alias, name in names.aliases.items()),
        *(f"--judged={name}={folder}" for name, folder in names.best_of.items()),
        *(["--hand-over"] if experiment.serve.hand_over else []),
    ]


def _environment(page: Serve) -> dict[str, str]:
    return {
        # Idle threads would otherwise spin, and take the cores from the other processes of a run.
        "OMP_WAIT_POLICY": "PASSIVE",
        # The keys come by a pipe, to the one process that needs them.
        **{name: value for name, value in os.environ.items() if name != page.api_key_env},
        # Their output goes to the logs of the run; FastChat would write files of its own beside them.
        "LOGDIR": "",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _api_keys(experiment: Experiment) -> tuple[str, ...]:
    """Those that clients may show; none where none is asked for."""
    variable = experiment.serve.api_key_env
    if variable is None:
        return ()
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(f"serve.api_key_env names {variable}, which is not set: export {variable}=KEY[,KEY...].")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError(f"A key in {variable} has characters that no HTTP header takes: use letters and digits.")
    return keys


def _models(address: Address) -> list[str]:
    """Names that the endpoint lists."""
    try:
        status, body = address.get("/v1/models")
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(f"{address.url}/v1/models does not answer ({error!r}): start the server again.") from None
    if status != http.client.OK:
        raise ServiceError(f"{address.url}/v1/models answered {status}: start the server again.")
    return [model["id"] for model in json.loads(body)["data"]]


def _reachable(host: str) -> str:
    """The address to call a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return LOOPBACK
    return host
