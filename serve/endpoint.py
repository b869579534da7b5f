"""The two processes of an endpoint: FastChat's OpenAI API server, and our worker."""

import http.client
import json
import logging
import os
import secrets
import socket
import threading
from pathlib import Path

from retroformer.errors import ConfigError, ServiceError
from retroformer.experiment.adapters import REFLECTOR
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.serve import Serve
from retroformer.loopback import is_loopback
from retroformer.promotions.history import History

from .first_adapter import record_first_adapter
from .private import Private
from .probe import HEALTH, ServerAddress
from .served_names import ServedNames, served_names
from .supervisor import Service, supervise

LOOPBACK = "127.0.0.1"
MARKER_BYTES = 8
KEY_BYTES = 32
START_PROBE_SECONDS = 5.0
"""Timeout of a health check at the start; between two checks the supervisor looks for processes that have died."""

logger = logging.getLogger(__name__)


def run(experiment: Experiment, config_path: Path, stop: threading.Event, *, own: bool = False) -> None:
    """Serve the experiment's base and adapters until `stop` is set.

    If `own` is true, this is the server of a stage: it stays with the adapter that is current now. Any other server
    records which adapter it serves first, and follows promotions and rollbacks.

    Raises:
        MissingInput: an adapter or the base model does not exist.
        DamagedFile: a record of a promotion, or the copy of the promoted adapter, is damaged.
        ConfigError: the variable of the keys is not set, or an adapter's name is reserved, or strangers could load
            adapters.
        ServiceError: the port is in use, or a process could not start, or keeps dying or does not respond.
    """
    names = served_names(experiment, config_path)
    promotions = History(experiment.folder) if REFLECTOR not in experiment.serve.adapters else None
    if promotions is not None and (current := promotions.current()) is not None:
        promotions.folder_of(current)  # Refused here rather than in the worker.
    private = Private(
        worker_key=secrets.token_hex(KEY_BYTES), marker=secrets.token_hex(MARKER_BYTES), api_keys=_api_keys(experiment)
    )
    require_key_for_strangers(experiment.serve)
    warn_unless_loopback(experiment.serve.host, bool(private.api_keys))
    logs = experiment.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with listen(experiment.serve.host, experiment.serve.port) as api, listen(LOOPBACK, 0) as worker:
        address = ServerAddress(
            _reachable(experiment.serve.host), api.getsockname()[1], next(iter(private.api_keys), "")
        )
        worker_address = ServerAddress(LOOPBACK, worker.getsockname()[1], private.worker_key)

        def ready() -> None:
            if not own:
                # Only now: an adapter that cannot be loaded must not stay the run's first one.
                record_first_adapter(experiment, config_path)
            print(f"Serving {', '.join(_models(address))} at {address.url}/v1", flush=True)  # noqa: T201  The output of the command.

        services = [
            Service(
                "API server",
                [*_api_arguments(experiment.serve), f"--socket={api.fileno()}", f"--worker={worker_address.url}"],
                logs / "api.log",
                _environment(experiment.serve),
                [api.fileno()],
                private.model_dump_json(),
                # Any status will do: an error may be about the worker.
                lambda: address.status(HEALTH) is not None,
            ),
            Service(
                "worker",
                [
                    *_worker_arguments(experiment, names),
                    *([f"--promotions={experiment.folder}"] if promotions is not None else []),
                    *([] if own else ["--follow"]),
                    f"--socket={worker.fileno()}",
                ],
                logs / "worker.log",
                _environment(experiment.serve),
                [worker.fileno()],
                private.model_copy(update={"api_keys": ()}).model_dump_json(),
                lambda: worker_address.status(HEALTH) == http.client.OK,
            ),
        ]
        supervise(services, lambda: address.status(HEALTH, START_PROBE_SECONDS) == http.client.OK, ready, stop)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port.

    Raises:
        ServiceError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ServiceError(
            f"Cannot listen on port {port} of {host}: {reason}; stop the process that uses it, or take another with "
            "serve.port=PORT (0 for any free one)."
        ) from None


def require_key_for_strangers(config: Serve) -> None:
    """Raise ConfigError if anyone in the network could load adapters from this machine's disk."""
    if config.hand_over and config.api_key_env is None and not is_loopback(config.host):
        raise ConfigError(
            f"serve.hand_over lets anyone who reaches serve.host={config.host} load any adapter on this machine: set "
            "serve.api_key_env to the variable with the keys, or stay on 127.0.0.1."
        )


def warn_unless_loopback(host: str, asks_for_key: bool = False) -> None:
    """Log a warning if the endpoint is open to the network."""
    if is_loopback(host):
        return
    who = "Anyone with one of its API keys" if asks_for_key else "EVERYONE there"
    logger.warning(
        "serve.host=%s OPENS THIS SERVER TO THE NETWORK. %s may use it, and anyone who listens there can read "
        "the requests, the answers and the keys (serve.api_key_env). Put a proxy with TLS in front of it, or stay on "
        "127.0.0.1.",
        host,
        who,
    )


def _api_arguments(config: Serve) -> list[str]:
    return [
        f"{__package__}.api.openai_api",
        *(["--loopback"] if is_loopback(config.host) else []),
        *(["--hand-over"] if config.hand_over else []),
    ]


def _worker_arguments(experiment: Experiment, names: ServedNames) -> list[str]:
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    return [
        f"{__package__}.worker",
        f"--base={experiment.train.base_model}",
        f"--dtype={experiment.serve.dtype}",
        f"--quantization={names.quantization}",
        f"--max-batch={experiment.serve.max_batch}",
        f"--threads={threads}",
        *(f"--adapter={name}={folder}" for name, folder in names.adapters.items()),
        *(f"--alias={alias}={name}" for alias, name in names.aliases.items()),
        *(f"--reward={name}={folder}" for name, folder in names.best_of.items()),
        *(["--hand-over"] if experiment.serve.hand_over else []),
        f"--template-settings={json.dumps(experiment.train.chat_template_kwargs)}",
    ]


def _environment(config: Serve) -> dict[str, str]:
    return {
        # Idle threads would otherwise spin and take cores from the other processes of a run.
        "OMP_WAIT_POLICY": "PASSIVE",
        # The keys go through a pipe to the only process that needs them.
        **{name: value for name, value in os.environ.items() if name != config.api_key_env},
        # Output goes to the logs of the run; FastChat would otherwise write log files of its own.
        "LOGDIR": "",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _api_keys(experiment: Experiment) -> tuple[str, ...]:
    """Return the API keys that clients may use; empty if the endpoint requires none."""
    variable = experiment.serve.api_key_env
    if variable is None:
        return ()
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(f"serve.api_key_env names {variable}, which is not set: export {variable}=KEY[,KEY...].")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError(f"A key in {variable} has characters that no HTTP header takes: use letters and digits.")
    return keys


def _models(address: ServerAddress) -> list[str]:
    """Return the model names that the endpoint lists."""
    try:
        status, body = address.get("/v1/models")
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(f"{address.url}/v1/models does not answer ({error!r}): start the server again.") from None
    if status != http.client.OK:
        raise ServiceError(f"{address.url}/v1/models answered {status}: start the server again.")
    return [model["id"] for model in json.loads(body)["data"]]


def _reachable(host: str) -> str:
    """Return an address to reach a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return LOOPBACK
    return host
