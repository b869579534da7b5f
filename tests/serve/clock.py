"""An event loop whose clock a test moves forward, so that limits of minutes pass at once."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 60.0
"""Longer than a state that is bound to come takes on a loaded machine."""


class MovableClock(asyncio.SelectorEventLoop):
    """The usual event loop; its time is the system's and what was added to it."""

    def __init__(self) -> None:
        self._added_seconds = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._added_seconds

    def advance(self, seconds: float) -> None:
        """Let every timer of the next `seconds` be due now."""
        self._added_seconds += seconds

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds.

        Raises:
            AssertionError: it does not hold in time.
        """
        end = self.time() + PATIENCE_SECONDS
        while not condition():
            assert self.time() < end, "the state that the test waits for does not come"
            await asyncio.sleep(0.01)


def running_clock() -> MovableClock:
    """The loop that runs the caller."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableClock), "the test was started in another loop"
    return loop
