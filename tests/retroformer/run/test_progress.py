import io

import pytest
from rich.console import Console

from retroformer.run.progress import LOG_SECONDS, Tally, line, tally
from retroformer.run.store import AttemptRow


class Clock:
    """Clock that returns the seconds it was set to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def a_log() -> Console:
    return Console(file=io.StringIO(), width=80)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_log_gets_the_last_state_as_one_whole_line() -> None:
    console = a_log()
    title = "no reflection, frozen reflector, warm start, trained reflector"
    with tally(title, 240, console=console) as counts:
        for outcome in ("success", "failure", "failure", "reflections"):
            counts.count(outcome)
        counts.done()
    assert written(console) == [f"{title}  1/240  0:00, 0:00 left  success 1  failure 2  invalid 0  reflections 1"]


def test_a_log_gets_a_line_at_intervals() -> None:
    console, clock = a_log(), Clock()
    with line("train ppo", 10, 4, console=console, clock=clock) as progress:
        progress.show(5, "score +0.10")
        clock.seconds = LOG_SECONDS
        progress.show(6, "score +0.20")
        clock.seconds += 1
        progress.show(7, "score +0.30")
        clock.seconds = 95
    assert written(console) == [
        "train ppo  6/10  0:30, 1:00 left  score +0.20",
        "train ppo  7/10  1:35, 1:35 left  score +0.30",
    ]


@pytest.mark.parametrize("terminal", [False, True], ids=["log", "terminal"])
def test_tasks_of_an_earlier_command_do_not_shorten_the_time_left(*, terminal: bool) -> None:
    console, clock = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None), Clock()
    with line("collect", 104, console=console, clock=clock) as progress:
        counts = Tally(progress)
        counts.done([AttemptRow("task", 0, 0, 0, "success", None, 1.0)], 100)
        clock.seconds = 60.0
        counts.done()
    assert any("3:00 left" in row for row in written(console))


def test_a_stage_that_fails_leaves_its_last_state_in_the_log() -> None:
    console = a_log()
    with pytest.raises(ValueError, match="broken"), line("collect", 2, console=console):
        raise ValueError("broken")
    assert written(console) == ["collect  0/2  0:00"]


def test_more_units_than_the_total_count_as_the_total() -> None:
    console = a_log()
    with line("written advice", 40, console=console) as progress:
        progress.show(44, "")
    assert written(console) == ["written advice  40/40  0:00"]


def test_in_a_terminal_of_80_columns_nothing_is_cut_off() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with tally("no reflection, frozen reflector, warm start, trained reflector", 240, console=console) as counts:
        for _ in range(120):
            counts.count("success")
            counts.count("failure")
            counts.count("reflections")
            counts.done()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "120/240" in shown
    assert "success 120  failure 120  invalid 0  reflections 120" in shown


def test_the_default_console_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with line("collect", 1) as progress:
        progress.show(1, "success 1")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "collect  1/1  0:00  success 1\n"
