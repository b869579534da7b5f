"""Environments of an OpenEnv server; every attempt has its own websocket session."""

from retroformer.agents.actors import ANSWER
from retroformer.environments.extras import Extras
from retroformer.integrations.openenv.server import OpenEnv as Section
from retroformer.integrations.openenv.server import require_server, server_version
from retroformer.integrations.openenv.taskset import taskset

__all__ = ["Section", "extras", "taskset"]

extras = Extras(actors={"answer": ANSWER}, require_machine=require_server, tool_versions=server_version)
