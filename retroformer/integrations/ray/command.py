"""The command `retroformer ray-train`: Ray Train places the processes of a stage and restarts them.

Each worker starts `retroformer train` as a launcher would, with its rank and the address of the first one. If a process
or its node is lost, Ray starts all of them again, and the stage goes on from its last checkpoint.

Adapters travel through an exchange, an address for `retroformer push` and `pull`, instead of a shared disk: before the
stage, each node pulls the earlier adapters that it lacks, checked by their hashes; after it, the first process pushes
the result.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app
from retroformer.config.imports import stage_package
from retroformer.errors import STOPPED_STATUS, ServiceError

if TYPE_CHECKING:
    from retroformer.config.experiment import Experiment

ClusterStage = Literal["warm", "sft", "reward", "dpo", "ppo", "grpo", "actor"]
EARLIER_STAGES: Mapping[ClusterStage, tuple[ClusterStage, ...]] = {
    "sft": ("warm",),
    "reward": ("warm", "sft", "reward"),
    "dpo": ("sft", "dpo"),
    "ppo": ("sft", "reward", "ppo"),
    "grpo": ("sft", "reward", "grpo"),
}
"""Stage -> the stages whose newest adapters it may read; its own are those of earlier rounds."""
_MOST_RESTARTS = 10

app = make_app()


@app.command(
    name="ray-train",
    options_metavar="[--processes NUMBER] [--gpu] [--exchange ADDRESS]",
    epilog=example("ray-train sft configs/demo.yaml --processes 2"),
)
def ray_train(
    stage: Annotated[ClusterStage, typer.Argument(metavar="STAGE", help="A stage of `retroformer train`.")],
    config: ConfigFile,
    overrides: Overrides,
    *,
    processes: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of processes.")] = 1,
    gpu: Annotated[bool, typer.Option("--gpu", help="Give each process a GPU.")] = False,
    exchange: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="fsspec address through which adapters travel between nodes."),
    ] = None,
) -> None:
    """Train a stage in processes of a Ray cluster, which restarts them when a node is lost.

    Reads and writes what `retroformer train STAGE` does, on the nodes, which need the config at the same path and a
    store that they reach. With --exchange, earlier adapters are pulled from there and the new one is pushed there;
    without it, the run's folder must be on a shared disk.
    """
    job = Job(str(Path.cwd()), stage, str(config), tuple(overrides), exchange)
    _train_on_cluster(job, processes, gpu=gpu)


class Job(NamedTuple):
    """A stage to train, as every worker needs to know it."""

    folder: str
    stage: ClusterStage
    config: str
    overrides: tuple[str, ...]
    exchange: str | None

    @property
    def experiment(self) -> "Experiment":
        """The config; its first domain, if it has several."""
        from retroformer.config.file import load_domains

        return load_domains(Path(self.config), self.overrides)[0]

    def address(self, folder: Path) -> str:
        """Return where the adapter of a stage's folder lies in the exchange."""
        return f"{str(self.exchange).rstrip('/')}/{folder.parent.name}/{folder.name}"


class ExitStatuses:
    """Exit statuses of the processes by rank: one that was started again replaces its own."""

    def __init__(self) -> None:
        self._statuses = dict[int, int]()

    def note(self, rank: int, status: int) -> None:
        self._statuses[rank] = status

    def failed(self) -> bool:
        """Return True if a process has ended with an error."""
        return any(self._statuses.values()) or not self._statuses


def _train_on_cluster(job: Job, processes: int, *, gpu: bool) -> None:
    """Train a stage in so many processes of the cluster of RAY_ADDRESS, or of one on this machine.

    Raises ServiceError: the stage has failed, or the cluster was lost.
    """
    ray = _ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    reason = ""
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=True)
        statuses = ray.remote(num_cpus=0)(ExitStatuses).remote()
        TorchTrainer(
            work,
            train_loop_config={"job": job._asdict(), "statuses": statuses},
            # The stage's own processes form their own group; this one connects the workers that start them.
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu),
            run_config=RunConfig(failure_config=FailureConfig(max_failures=_MOST_RESTARTS)),
        ).fit()
        failed = ray.get(statuses.failed.remote())
    except Exception as error:  # Ray Train wraps whatever a worker raises in classes that its versions rename.
        failed, reason = True, f" ({' '.join(str(error).split())[-300:]})"
    finally:
        ray.shutdown()
    if failed:
        raise ServiceError(
            f"The stage {job.stage} has failed on the cluster{reason}: see what it has printed, mend it, and run the "
            "same command again."
        )


def work(settings: Mapping[str, Any]) -> None:
    """Run one process of the stage in a worker of Ray Train, and note its exit status.

    Raises:
        RuntimeError: an adapter could not be pulled, or the process was killed, or stopped by SIGTERM. Ray then starts
            all of them again, which would not help after an error of the stage's own.
    """
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    job, context = Job(**settings["job"]), get_context()
    rank = context.get_world_rank()
    # Paths of the config are relative to the folder of the command, if this machine has it.
    with suppress(OSError):
        os.chdir(job.folder)
    first = broadcast_from_rank_zero(_own_address() if rank == 0 else None)
    if job.exchange and context.get_local_rank() == 0:
        pull_missing(job)
    broadcast_from_rank_zero(None)  # Nobody starts before all nodes have the adapters.
    shares_cards = "," in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank() if shares_cards else 0),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": first[0],
        "MASTER_PORT": str(first[1]),
    }
    command = [sys.executable, "-m", stage_package("train"), job.stage, job.config, *job.overrides]
    status = subprocess.run(command, env=os.environ | place, check=False).returncode
    if status < 0 or status == STOPPED_STATUS:
        how = "stopped by SIGTERM" if status == STOPPED_STATUS else f"killed by signal {-status}"
        raise RuntimeError(f"process {rank} of {job.stage} was {how}")
    if job.exchange and rank == 0 and not status:
        address = job.address(job.experiment.stage_folder(job.stage))
        status = _share("push", job.config, address, *job.overrides, "--stage", job.stage)
    _ray().get(settings["statuses"].note.remote(rank, status))


def _ray() -> Any:
    """Return the package without types: it declares its functions in a way that type checkers do not see."""
    return import_module("ray")


def _own_address() -> tuple[str, int]:
    """Return this node's address, and a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(_ray().util.get_node_ip_address()), int(probe.getsockname()[1])


def pull_missing(job: Job) -> None:
    """Pull the newest adapters that the stage may read, if this node lacks them. Raises RuntimeError."""
    from retroformer.run.adapters import round_folders

    experiment = job.experiment
    for stage in EARLIER_STAGES.get(job.stage, ()):
        folders = round_folders(experiment, stage)
        for folder in folders[1:] if stage == job.stage else folders:
            # Whether the stage needs what was not pushed is for the stage to say.
            if not folder.is_dir() and _share("pull", job.address(folder), str(folder), "--if-pushed"):
                raise RuntimeError(f"the adapter of {stage} could not be pulled from {job.address(folder)}")
            if folder.is_dir():
                break


def _share(*words: str) -> int:
    """Run `retroformer push` or `pull`, and return its exit status."""
    return subprocess.run([sys.executable, "-m", "retroformer", *words], check=False).returncode
