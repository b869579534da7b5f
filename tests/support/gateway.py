"""The gateway as a process of its own, between a test and its provider."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.support.runs import ROOT


class RunningGateway(NamedTuple):
    """A gateway that answers."""

    host: str
    """Address and port."""
    process: subprocess.Popen[str]

    def of_run(self, name: str) -> str:
        """Return the base URL of a run, as an agent gets it."""
        return f"http://{self.host}/runs/{name}/v1"


def write_gateway_config(folder: Path, reflector: str) -> Path:
    """Write a config whose reflector is at this address; return its path."""
    config = {
        "run": "agent",
        "store": f"sqlite:///{folder}/mine.db",
        "environment": {"name": "agent"},
        "loop": {"trials": 3},
        "reflector": {"endpoint": {"base_url": reflector, "model": "big", "timeout_seconds": 20.0}},
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def gateway(config: Path, upstream: str, *options: str) -> Iterator[RunningGateway]:
    """Run `retroformer gateway` on a free port until the end of the context."""
    words = [sys.executable, "-m", "retroformer", "gateway", str(config), "--upstream", upstream, "--port", "0"]
    with subprocess.Popen(
        [*words, "--unadvised", "0", *options],
        cwd=config.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline()
            assert "The gateway is at http://" in said, said + process.stderr.read()
            yield RunningGateway(said.partition("http://")[2].partition("/")[0], process)
        finally:
            process.terminate()
            process.communicate()


def environment() -> dict[str, str]:
    """Return the environment variables of a process that runs this checkout, without keys."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return kept | {"PYTHONPATH": str(ROOT)}
