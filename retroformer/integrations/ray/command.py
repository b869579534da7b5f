"""The command `retroformer ray-train`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app

ClusterStage = Literal["warm", "sft", "reward", "dpo", "ppo", "grpo", "actor"]

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
    from retroformer.integrations.ray.training import Job, train_on_cluster

    job = Job(str(Path.cwd()), stage, str(config), tuple(overrides), exchange)
    train_on_cluster(job, processes, gpu=gpu)
