"""Config section of the environment of an OpenEnv server."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from retroformer.config.sections.base import Positive
from retroformer.endpoint.secrets.url import HttpUrl, SecretUrl
from retroformer.environments.section import ScaledSection
from retroformer.errors import ConfigError


class OpenEnv(ScaledSection):
    packages: ClassVar[tuple[str, ...]] = ("websockets",)
    default_actor: ClassVar[str] = "answer"
    plays_alone: ClassVar[bool] = True
    name: Literal["openenv"] = "openenv"
    url: HttpUrl | None = None
    """Address of the server, such as http://127.0.0.1:8000; training on stored facts needs none."""
    data: Path | None = None
    """JSON lines file with the tasks, one object a line: an `id`, perhaps a `split`, and in `reset` what the server's
    reset takes. Without a file, tasks are seeds."""
    split: str = "train"
    """Tasks to use: those with this `split`, or the seeds of train or held_out."""
    size: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of seeds of each split, if there is no file."""
    action: str | None = None
    """Field of the server's action that gets the actor's text; None: the only field that the action requires. If it
    requires several or none, an actor's text is the whole action, a JSON object."""
    observation: str | None = None
    """Field of the observation that the actor sees; None: all of it, as JSON."""
    reward: Literal["sum", "last"] = "sum"
    """The return: the sum of the rewards of all steps, or the last one."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time limit in seconds of each answer of the server; after that the attempt is invalid."""
    max_steps: Positive = 20
    """Number of actions after which an episode is truncated."""

    @property
    def server(self) -> SecretUrl:
        """Address of the server. Raises ConfigError if the config names none."""
        if self.url is None:
            raise ConfigError("There is no OpenEnv server to play with: name its address in environment.url.")
        return self.url

    def address(self, protocol: Literal["http", "ws"]) -> str:
        """Return the server's address with its credentials, for connecting. Raises ConfigError if there is none."""
        scheme, _, rest = self.server.secret_url().rstrip("/").partition("://")
        return f"{protocol}{'s' if scheme in ('https', 'wss') else ''}://{rest}"

    @property
    def longest_step_seconds(self) -> float:
        return 3 * self.timeout_seconds  # The first reset reads the schema, opens a session and begins an episode.

    def score(self, rewards: list[float]) -> float:
        """Return the return of an episode, from 0 to 1."""
        return self.scaled((sum(rewards) if self.reward == "sum" else rewards[-1]) if rewards else self.lowest)
