"""Conversion of the text that FastChat renders from a chat back to the chat's messages.

FastChat's API server renders the messages itself, with a conversation template that the worker names, and sends
only the result. Our template puts markers between the messages, so that the worker can split the text and use the
model's own chat template, as training does.
"""

import re
from collections.abc import Mapping
from typing import Any

from fastchat.conversation import Conversation, SeparatorStyle


class MarkedPrompt:
    """Template with secret markers, so that no client can forge a turn by writing a marker into a message.

    The secret must survive a restart of the worker, since the API server keeps the template.
    """

    def __init__(self, secret: str) -> None:
        self._system, self._user, self._assistant, self._end = (
            f"<<{secret}:{part}>>" for part in ("system", "user", "assistant", "end")
        )

    def template(self) -> Any:
        """Return the template for FastChat. Only its style ADD_COLON_TWO accepts a message that consists of parts."""
        conversation: Any = Conversation  # Its annotations are narrower than the types that it accepts.
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
        """Return the chat that `prompt` was rendered from; None if it is plain text, as from /v1/completions."""
        if not prompt.startswith(self._system):
            return None
        turn = f"({re.escape(self._user)}|{re.escape(self._assistant)}): ?"
        system, *turns = re.split(turn, prompt.removeprefix(self._system))
        # The last turn is still to be written.
        roles, texts = turns[:-2:2], turns[1:-2:2]
        messages = [
            {"role": "user" if role == self._user else "assistant", "content": text.removesuffix(self._end)}
            for role, text in zip(roles, texts, strict=True)
        ]
        system = system.removesuffix(self._end)
        return [*([{"role": "system", "content": system}] if system else []), *messages]
