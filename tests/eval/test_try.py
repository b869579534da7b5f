"""`make try`: the reflector that comes with the package advises the actor that comes with it."""

from pathlib import Path

import pytest

from eval.__main__ import main
from retroformer.run.arm_names import FIRST_TRIAL
from tests.support.runs import ROOT, facts, open_config


@pytest.mark.slow
def test_the_packaged_reflector_helps_the_packaged_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = ROOT / "configs" / "try.yaml"
    main([str(config)])
    attempts = facts(open_config(config), FIRST_TRIAL).trajectories.values()
    failures = sum(attempt.failed for attempt in attempts)
    retries = facts(open_config(config), "eval/packaged reflector").trajectories.values()
    assert len(attempts) == 16
    assert len(retries) == failures > 4
    assert sum(not retry.failed for retry in retries) > failures / 2
    alone = facts(open_config(config), "eval/retry alone").trajectories.values()
    assert all(retry.failed for retry in alone)
