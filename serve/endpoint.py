"""The processes of an endpoint: our worker, vLLM behind it, and FastChat's controller and API server before it."""

import json
import logging
import os
import secrets
import shutil
import threading
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from retroformer.config.experiment import Experiment
from retroformer.config.imports import require_extra
from retroformer.config.sections.serve import Serve
from retroformer.endpoint.http_client import NoAnswer, fetch_now, read_key
from retroformer.endpoint.request_guard import address_of, is_loopback, listen
from retroformer.errors import ConfigError, ServiceError
from retroformer.models.embedded import require_base_model
from retroformer.run.adapter_names import REFLECTOR
from retroformer.run.promotions import History

from .served_names import VllmAddresses, WorkerSettings, record_first_adapter, served_names
from .supervisor import HEALTH, POLL_SECONDS, PROBE_SECONDS, Service, supervise

LOOPBACK = "127.0.0.1"
LISTING_SECONDS = 60.0
"""Time after which a worker that answers is listed by FastChat."""

logger = logging.getLogger(__name__)


class ListenAddress(NamedTuple):
    """Where a server listens, and the key that it requires, if any."""

    host: str
    port: int
    key: str = ""

    @property
    def url(self) -> str:
        """Address under which this machine reaches it."""
        return address_of(self.host, self.port)

    def get(self, path: str, seconds: float = PROBE_SECONDS) -> tuple[int | None, bytes]:
        """Return status and body of a response; None and nothing if there is none within `seconds`."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            answer = fetch_now("GET", f"{self.url}{path}", seconds, headers=headers)
        except NoAnswer:
            return None, b""
        return answer.status, answer.content


def run(
    experiment: Experiment, config_path: Path, stop: threading.Event, *, of_stage: bool = False, fastchat: bool = False
) -> None:
    """Serve the experiment's base and adapters until `stop` is set.

    With `of_stage`, this is the server of a stage: it stays with the adapter that is current now. Any other server
    records which adapter it serves first, and follows promotions and rollbacks. With `fastchat`, FastChat's controller
    and API server are started, too, and clients reach the worker through them.

    Raises:
        MissingInput: an adapter or the base model does not exist.
        DamagedFile: a record of a promotion, or the copy of the promoted adapter, is damaged.
        ConfigError: the variable of the keys is not set, or an adapter's name is reserved, or strangers could load
            adapters.
        ServiceError: the port is in use, or a process could not start, or keeps dying or does not respond.
    """
    config = experiment.serve
    check_host(config)
    settings = worker_settings(experiment, follow=not of_stage)
    logs = experiment.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    key = next(iter(settings.api_keys), "")
    host, port, services = config.host, config.port, list[Service]()
    if config.engine == "vllm":
        settings, services = _vllm(experiment, settings, logs)
    if fastchat:
        # FastChat's servers take no sockets, so their ports are free only a moment before they start.
        front = ListenAddress(host, _free_port(host, port), key)
        controller = ListenAddress(LOOPBACK, _free_port(LOOPBACK, 0))
        settings = settings.model_copy(update={"controller": controller.url, "loopback": True})
        services += _fastchat(config, settings, controller, front, logs)
        host, port = LOOPBACK, 0
    with listen(port, host, "serve.port") as listening:
        worker = ListenAddress(host, listening.getsockname()[1], key)
        settings = settings.model_copy(update={"address": worker.url})
        services.append(
            Service(
                "worker",
                [f"{__package__}.worker", str(listening.fileno())],
                logs / "worker.log",
                _environment(config),
                lambda seconds: worker.get(HEALTH, seconds)[0] == HTTPStatus.OK,
                settings.model_dump_json(),
                [listening.fileno()],
            )
        )

        def ready() -> None:
            if not of_stage:
                # Only now: an adapter that cannot be loaded must not stay the run's first one.
                record_first_adapter(experiment, config_path)
            address = front if fastchat else worker
            print(f"Serving {', '.join(_models(address, stop))} at {address.url}/v1", flush=True)  # noqa: T201  The output of the command.

        supervise(services, ready, stop)


def worker_settings(experiment: Experiment, *, follow: bool) -> WorkerSettings:
    require_extra("serve", "torch", "uvicorn")
    require_base_model(experiment.train.base_model)
    config, names = experiment.serve, served_names(experiment)
    promotions = experiment.folder if REFLECTOR not in config.adapters else None
    if promotions is not None and (current := (history := History(promotions)).current()) is not None:
        history.folder_of(current)  # Refused here rather than in the worker.
    return WorkerSettings(
        names=names,
        base_model=experiment.train.base_model,
        dtype=config.dtype,
        chat_template_kwargs=experiment.train.chat_template_kwargs,
        threads=int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
        gpu_share=config.gpu_share,
        promotions=promotions,
        follow=follow,
        hand_over=config.hand_over,
        loopback=is_loopback(config.host),
        api_keys=_api_keys(config.api_key_env),
        controller=None if config.controller is None else config.controller.secret_url(),
    )


def _vllm(experiment: Experiment, settings: WorkerSettings, logs: Path) -> tuple[WorkerSettings, list[Service]]:
    """Return the settings of a worker that asks vLLM, and the vLLM server to start, if none is running.

    Raises ConfigError if vLLM is not installed or cannot serve a name, ServiceError if a running one does not answer.
    """
    from .vllm_command import ENVIRONMENT, running_servers, vllm_command

    config, names, history = experiment.serve, settings.names, History(experiment.folder)
    if names.best_of:
        raise ConfigError(
            f"serve.engine=vllm has no reward models, and the config asks for {next(iter(names.best_of))!r}: leave "
            "best-of names out, or set serve.engine=own."
        )
    # vLLM reads an adapter again once it has dropped it, when its stage may have been trained again.
    kept = {name: history.folder_of(history.keep(name, folder)) for name, folder in names.adapters.items()}
    names = names.model_copy(update={"adapters": kept})
    command = vllm_command(experiment, names)
    dtype = command[command.index("--dtype") + 1]
    settings = settings.model_copy(update={"names": names, "dtype": dtype})
    if config.vllm is not None:
        return settings.model_copy(update={"vllm": running_servers(config.vllm, command)}), []
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(
            "serve.engine=vllm needs vLLM, and there is no program `vllm` on the PATH: install it in an environment of "
            "its own and add its bin folder to the PATH, or name a running server in serve.vllm.base_url."
        )
    at = ListenAddress(LOOPBACK, _free_port(LOOPBACK, 0), secrets.token_hex(16))
    where = ["--host", at.host, "--port", str(at.port)]
    service = Service(
        "vLLM server",
        [f"{__package__}.supervisor", program, *command[1:], *where],
        logs / "vllm.log",
        _environment(config) | ENVIRONMENT | {"VLLM_API_KEY": at.key},
        lambda seconds: at.get(HEALTH, seconds)[0] == HTTPStatus.OK,
    )
    return settings.model_copy(update={"vllm": VllmAddresses(urls=(at.url,), key=at.key)}), [service]


def _fastchat(
    config: Serve, settings: WorkerSettings, controller: ListenAddress, address: ListenAddress, logs: Path
) -> list[Service]:
    """Return FastChat's controller and its API server at `address`."""

    def service(name: str, module: str, at: ListenAddress, log: str, *arguments: str, secret: str = "[]") -> Service:
        where = [f"fastchat.serve.{module}", f"--host={at.host}", f"--port={at.port}", *arguments]
        command = [f"{__package__}.fastchat_on_pydantic2", *where]
        # Any status will do: an error may be about the worker.
        return Service(
            name, command, logs / log, _environment(config), lambda seconds: at.get("/", seconds)[0] is not None, secret
        )

    behind = f"--controller-address={controller.url}"
    keys = json.dumps([f"--api-keys={','.join(settings.api_keys)}"] if settings.api_keys else [])
    return [
        service("controller", "controller", controller, "controller.log"),
        service("API server", "openai_api_server", address, "api.log", behind, "--allowed-origins=[]", secret=keys),
    ]


def _free_port(host: str, port: int) -> int:
    with listen(port, host, "serve.port") as listening:
        number: int = listening.getsockname()[1]
        return number


def check_host(config: Serve) -> None:
    """Log a warning if the endpoint is open to the network.

    Raises ConfigError if anyone there could load adapters, or use a server that seems to ask for keys.
    """
    if is_loopback(config.host):
        return
    if config.hand_over and config.api_key_env is None:
        raise ConfigError(
            f"serve.hand_over lets anyone who reaches serve.host={config.host} load any adapter on this machine: set "
            "serve.api_key_env to the variable with the keys, or stay on 127.0.0.1."
        )
    if config.controller is not None and config.api_key_env is not None:
        raise ConfigError(
            f"serve.controller opens routes without a key at serve.host={config.host}, since FastChat sends none: stay "
            "on 127.0.0.1, or leave serve.controller or serve.api_key_env out."
        )
    logger.warning(
        "serve.host=%s OPENS THIS SERVER TO THE NETWORK. %s may use it, and anyone who listens there can read the "
        "requests, the answers and the keys (serve.api_key_env). Put a proxy with TLS in front of it, or stay on "
        "127.0.0.1.",
        config.host,
        "Anyone with one of its API keys" if config.api_key_env else "EVERYONE there",
    )


def _environment(config: Serve) -> dict[str, str]:
    return {
        # Idle threads would otherwise spin and take cores from the other processes of a run.
        "OMP_WAIT_POLICY": "PASSIVE",
        # A stream that waits behind others is silent for longer than FastChat's 100 seconds.
        "FASTCHAT_WORKER_API_TIMEOUT": "3600",
        # The keys go through a pipe to the only processes that need them.
        **{name: value for name, value in os.environ.items() if name != config.api_key_env},
        # Output goes to the logs of the run; FastChat would otherwise write log files of its own.
        "LOGDIR": "",
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), LOOPBACK, "localhost"))),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _api_keys(variable: str | None) -> tuple[str, ...]:
    """Return the API keys that clients may use; empty if the endpoint requires none."""
    if variable is None:
        return ()
    keys = tuple(key.strip() for key in read_key(variable).split(",") if key.strip())
    if not keys:
        raise ConfigError(f"serve.api_key_env names {variable}, which is not set: export {variable}=KEY[,KEY...].")
    return keys


def _models(address: ListenAddress, stop: threading.Event) -> list[str]:
    """Return the model names that the endpoint lists; FastChat lists none until the worker has registered."""
    for _ in range(int(LISTING_SECONDS / POLL_SECONDS)):
        status, body = address.get("/v1/models", LISTING_SECONDS)
        if status != HTTPStatus.OK:
            what = f"answered {status}" if status else "does not answer"
            raise ServiceError(f"{address.url}/v1/models {what}: start the server again.")
        names = [model["id"] for model in json.loads(body)["data"]]
        if "base" in names or stop.wait(POLL_SECONDS):
            return names
    raise ServiceError(f"{address.url}/v1/models lists no models: see worker.log in the run's logs.")
