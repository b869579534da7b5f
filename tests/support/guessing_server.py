"""A real OpenEnv server: guess a number from 0 to 9 in three steps. `python -m tests.support.guessing_server PORT`."""

import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    guess: int


class Hint(Observation):
    hint: str


class Guessing(Environment[Guess, Hint, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._number, self._state = 0, State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        if seed == 13:
            raise RuntimeError("out of numbers")
        self._number, self._state = (seed or 0) % 10, State(episode_id=episode_id, step_count=0)
        return Hint(hint="Guess a number from 0 to 9.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        self._state.step_count += 1
        if action.guess == 99:
            time.sleep(600)
        if action.guess == self._number:
            return Hint(hint="Right.", reward=1.0, done=True)
        side = "higher" if action.guess < self._number else "lower"
        over = self._state.step_count == 3
        return Hint(hint=f"The number is {side}.", reward=-0.5 if over else 0.0, done=over)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
