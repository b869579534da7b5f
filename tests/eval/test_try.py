"""`retroformer try`: the reflector that comes with the package advises the actor that comes with it."""

import re
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.run.arm_names import FIRST_TRIAL
from tests.support.runs import ROOT, facts, open_config


@pytest.mark.slow
def test_the_packaged_reflector_helps_the_packaged_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    config = ROOT / "configs" / "try.yaml"
    main(["try"], program="retroformer")
    attempts = facts(open_config(config), FIRST_TRIAL).trajectories.values()
    failures = sum(attempt.failed for attempt in attempts)
    advised = facts(open_config(config), "eval/packaged reflector")
    solved = sum(not retry.failed for retry in advised.trajectories.values())
    assert len(attempts) == 16
    assert len(advised.trajectories) == failures > 4
    assert solved > failures / 2
    alone = facts(open_config(config), "eval/retry alone").trajectories.values()
    assert all(retry.failed for retry in alone)

    shown = capsys.readouterr().out
    assert (
        f"Of 16 games the agent solves {16 - failures} at once. A second attempt at the others solves 0 without advice "
        f"and {solved} with advice."
    ) in shown
    # The last game that is shown before the others are played was lost, and then solved with the stored advice.
    picture = shown.partition("The same with 16 games")[0]
    advice = re.findall(r"Advice of the reflector: (.*)", picture)[-1]
    assert any(" ".join(stored.reflection.text.split()).startswith(advice.strip()) for stored in advised.reflections)
    assert "Solved at once: heat some cup and put it in shelf.\n" in picture
    (quoted,) = re.findall(r"The advice is \*(.*?)\*", (ROOT / "README.md").read_text(), re.DOTALL)
    assert f"Advice of the reflector: {' '.join(quoted.split())}" in picture
    endings = re.findall(r"(Lost after \d+ actions\.|Solved in \d+ actions\.)", picture)[-2:]
    assert {*endings} == {"Lost after 15 actions.", "Solved in 7 actions."}
    commands = re.findall(r"(?:  |Next: )(retroformer .*)", shown)
    assert [command.split()[1] for command in commands] == ["view", "eval", "init"]
    assert Path(commands[1].split()[2]).resolve() == config
