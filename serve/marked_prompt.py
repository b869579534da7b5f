"""From the one text that FastChat makes of a chat back to its messages.

FastChat's API server renders the messages itself, by a template of its own that the worker names, and sends only
the result. Our template puts markers between the messages, so that the worker can take the text apart again and
use the model's own chat template, the one that training uses.
"""

import re
from collections.abc import Mapping
from typing import Any

from fastchat.conversation import Conversation, SeparatorStyle


class MarkedPrompt:
    """The markers hold a secret: no client can write one into a message and so forge a turn.

    The secret must survive a restart of the worker, since the API server remembers the template.
    """

    def __init__(self, secret: str) -> None:
        self._system, self._user, self._assistant, self._end = (
            f"<<{secret}:{part}>>" for part in ("system", "user", "assistant", "end")
        )

    def template(self) -> Any:
        """For FastChat. Of its styles ADD_COLON_TWO alone accepts a message that consists of parts."""
        conversation: Any = Conversation  # Its annotations are narrower than what it takes.
        return conversation(
            name="marked",
            system_template=self._system + "{system_message}",
            system_message="",
            roles=(self._user, self._assistant),
            messages=[],
            offset=0,
            sep_style=int(SeparatorStyle.ADD_COLON_TWO),
            sep=self._end,
            sep2=self._end,
            stop_str=None,
            stop_token_ids=[],
        )

    def messages(self, prompt: str) -> list[Mapping[str, str]] | None:
        """The chat that `prompt` was made from; None where it is plain text, as from /v1/completions."""
        if not prompt.startswith(self._system):
            return None
        turn = f"({re.escape(self._user)}|{re.escape(self._assistant)}): ?"
        system, *turns = re.split(turn, prompt.removeprefix(self._system))
        # The last turn is the one to write.
        roles, texts = turns[:-2:2], turns[1:-2:2]
        messages = [
            {"role": "user" if role == self._user else "assistant", "content": text.removesuffix(self._end)}
            for role, text in zip(roles, texts, strict=True)
        ]
        system = system.removesuffix(self._end)
        return [*([{"role": "system", "content": system}] if system else []), *messages]
