"""Event loop with a clock that tests move forward, so that timeouts of minutes pass at once."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 60.0
"""Upper bound for any expected state to appear on a loaded machine."""


class MovableClock(asyncio.SelectorEventLoop):
    """The usual event loop, with the system's time plus an offset."""

    def __init__(self) -> None:
        self._added_seconds = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._added_seconds

    def advance(self, seconds: float) -> None:
        """Make every timer of the next `seconds` due now."""
        self._added_seconds += seconds

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds.

        Raises:
            AssertionError: the condition does not hold in time.
        """
        end = self.time() + PATIENCE_SECONDS
        while not condition():
            assert self.time() < end, "the state that the test waits for does not come"
            await asyncio.sleep(0.01)


def running_clock() -> MovableClock:
    """Return the loop that runs the caller."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableClock), "the test was started in another loop"
    return loop
