"""A run for cases."""

from pathlib import Path

import pytest

from retroformer.config.experiment import Experiment
from retroformer.environments.agent import AgentSection


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(run="mine", environment=AgentSection(), store=f"sqlite:///{tmp_path / 'mine.db'}")
