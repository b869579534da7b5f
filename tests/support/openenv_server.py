"""Real OpenEnv servers in one process: `python -m tests.support.openenv_server DESCRIPTOR`, of a listening socket.

At the root: guess a number from 0 to 9 in three steps. Below it, /saying, /placing and
/pricing repeat what they are sent, each with actions of another form; /newer is a new version of /saying, and
/full has a single session.
"""

import socket
import sys
import time
from typing import Annotated, Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import Field, field_validator


class Guess(Action):
    guess: int


class Saying(Action):
    text: str
    loud: bool = False

    @field_validator("text")
    @classmethod
    def _is_said(cls, text: str) -> str:
        if text == "nothing":
            raise ValueError("say something")
        return text


class Place(Action):
    row: Annotated[int, Field(le=3)]
    marks: list[int]
    note: str | None = None


class Prices(Action):
    prices: list[float]


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
        if seed == 14:
            return Hint(hint="Nobody plays.", reward=1.0, done=True)
        self._number, self._state = (seed or 0) % 10, State(episode_id=episode_id, step_count=0)
        return Hint(hint="Guess a number from 0 to 9.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        self._state.step_count += 1
        if action.guess == 99:
            time.sleep(600)
        if action.guess == 98:
            return Hint.model_validate({"hint": None})
        if action.guess == self._number:
            return Hint(hint="Right.", reward=1.0, done=True)
        side = "higher" if action.guess < self._number else "lower"
        over = self._state.step_count == 3
        return Hint(hint=f"The number is {side}.", reward=-0.5 if over else 0.0, done=over)

    @property
    def state(self) -> State:
        return self._state


class Repeating(Environment[Action, Hint, State]):
    """Answers every action with the action and a reward of a quarter."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    version = "1.0.0"

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        return Hint(hint="Begin.")

    def step(self, action: Action, timeout_s: float | None = None, **_: Any) -> Hint:
        return Hint(hint=action.model_dump_json(exclude={"metadata"}, exclude_defaults=True), reward=0.25)

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="repeating", description="", version=self.version)

    @property
    def state(self) -> State:
        return State()


class NewerRepeating(Repeating):
    version = "2.0.0"


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=64)
    for path, environment, action in (
        ("/saying", Repeating, Saying),
        ("/newer", NewerRepeating, Saying),
        ("/placing", Repeating, Place),
        ("/pricing", Repeating, Prices),
    ):
        app.mount(path, create_fastapi_app(environment, action, Hint, max_concurrent_envs=64))
    app.mount("/full", create_fastapi_app(Repeating, Saying, Hint, max_concurrent_envs=1))
    listening = socket.socket(fileno=int(sys.argv[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
