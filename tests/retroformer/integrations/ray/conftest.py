"""A folder for Ray's sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ray_cluster


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Give Ray a folder that is removed."""
    with ray_cluster.ray_folder() as folder:
        yield folder
