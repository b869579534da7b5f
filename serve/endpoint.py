"""The three processes of an endpoint: FastChat's controller, its OpenAI API server, and our worker."""

import ipaddress
import json
import logging
import os
import secrets
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

from retroformer.config import Experiment, Serve
from retroformer.errors import ConfigError, ServiceError
from serve import adapters
from serve.openai_api_keys import API_KEYS_VARIABLE
from serve.supervisor import Service, supervise

LOOPBACK = "127.0.0.1"
HEALTH_SECONDS = 20.0

logger = logging.getLogger(__name__)


def run(experiment: Experiment, page: Path, stop: threading.Event) -> None:
    """Serve the experiment's base and adapters until `stop` is set.

    Raises:
        MissingInput: an adapter or the base model is not there.
        ConfigError: the key's variable is not set, or an adapter's name is not free, or strangers could load adapters.
        ServiceError: the port is taken, or a process could not start or keeps dying.
    """
    names = adapters.names(experiment, page)
    keys = _api_keys(experiment)
    require_key_for_strangers(experiment.serve)
    warn_unless_loopback(experiment.serve.host)
    logs = experiment.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with listen(experiment.serve.host, experiment.serve.port) as api, listen(LOOPBACK, 0) as worker:
        url = f"http://{_reachable(experiment.serve.host)}:{api.getsockname()[1]}/v1"

        def ready() -> None:
            print(f"Serving {', '.join(_models(url, keys))} at {url}", flush=True)  # noqa: T201  The command's answer.

        services = _services(experiment, names, logs, _environment(keys), api.fileno(), worker.fileno())
        supervise(services, lambda: "base" in _models(url, keys), ready, stop)


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
    if page.hand_over and page.api_key_env is None and not _is_loopback(page.host):
        raise ConfigError(
            f"serve.hand_over lets whoever reaches serve.host={page.host} load any adapter on this machine: set "
            "serve.api_key_env to the variable with the keys, or stay on 127.0.0.1."
        )


def warn_unless_loopback(host: str) -> None:
    """Say loudly what becomes open to the network."""
    if not _is_loopback(host):
        logger.warning(
            "serve.host=%s OPENS THIS SERVER TO THE NETWORK. API keys (serve.api_key_env) guard /v1/* only: "
            "/api/v1/* answers without one. Put a proxy in front of it, or stay on 127.0.0.1.",
            host,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _services(
    experiment: Experiment, names: adapters.Names, logs: Path, environment: dict[str, str], api: int, worker: int
) -> list[Service]:
    """The processes in the order of their start; `api` and `worker` are the descriptors of their listening sockets."""
    # FastChat's controller takes a port and no socket; the others inherit theirs, which so survives a restart.
    with listen(LOOPBACK, 0) as free:
        port = free.getsockname()[1]
    controller = f"http://{LOOPBACK}:{port}"
    hand_over = ["--hand-over"] if experiment.serve.hand_over else []
    controller_arguments = ["fastchat.serve.controller", "--host", LOOPBACK, "--port", str(port)]
    api_arguments = [
        "serve.openai_api",
        f"--socket={api}",
        f"--body-bytes={experiment.serve.body_bytes}",
        f"--controller-address={controller}",
        *hand_over,
        # No web page that someone has open on this machine may ask for adapters; FastChat lets every one.
        *(["--allowed-origins=[]"] if hand_over else []),
    ]
    worker_arguments = [*_worker_arguments(experiment, names), f"--controller={controller}", f"--socket={worker}"]
    worker_arguments += hand_over
    return [
        Service("controller", controller_arguments, logs / "controller.log", environment),
        Service("API server", api_arguments, logs / "api.log", environment, [api]),
        Service("worker", worker_arguments, logs / "worker.log", environment, [worker]),
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
        f"--secret={secrets.token_hex(8)}",
    ]


def _environment(keys: str) -> dict[str, str]:
    return {
        # Idle threads would otherwise spin, and take the cores from the other processes of a run.
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        # Their output goes to the logs of the run; FastChat would write files of its own beside them.
        "LOGDIR": "",
        "FASTCHAT_WORKER_HEART_BEAT_INTERVAL": "5",
        # A request may wait long behind others before its first token.
        "FASTCHAT_WORKER_API_TIMEOUT": "3600",
        "TOKENIZERS_PARALLELISM": "false",
        **({API_KEYS_VARIABLE: keys} if keys else {}),
    }


def _api_keys(experiment: Experiment) -> str:
    """Comma-separated; empty where none are asked for."""
    variable = experiment.serve.api_key_env
    if variable is None:
        return ""
    keys = os.environ.get(variable, "")
    if not keys:
        raise ConfigError(f"serve.api_key_env names {variable}, which is not set: export {variable}=KEY[,KEY...].")
    return keys


def _models(url: str, keys: str) -> list[str]:
    """Names that the endpoint lists; none while it is not healthy."""
    headers = {"Authorization": f"Bearer {keys.split(',')[0]}"} if keys else {}
    try:
        request = urllib.request.Request(f"{url}/models", headers=headers)
        with urllib.request.urlopen(request, timeout=HEALTH_SECONDS) as answer:
            return [model["id"] for model in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError):
        return []


def _reachable(host: str) -> str:
    """The address to call a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
