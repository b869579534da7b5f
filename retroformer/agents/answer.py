"""Actor that answers in a conversation: everything that its model writes is the action."""

from retroformer.endpoint.model import LanguageModel
from retroformer.environments.extras import ActorKind, ActorParts
from retroformer.prompts import PromptPack, conversation_prompt
from retroformer.protocols import Actor, Move, Scene


class AnsweringActor:
    """A frozen language model in a chat with the environment: observations are the user's turns, actions its own."""

    def __init__(self, model: LanguageModel, pack: PromptPack, temperature: float, max_new_tokens: int) -> None:
        self._model, self._pack = model, pack
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Answer the last observation. Raises EndpointFailure."""
        completion = await self._model.complete(
            conversation_prompt(self._pack, scene),
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            seed=scene.seed if self._temperature else None,
        )
        return Move(action=completion.text.strip(), usage=completion.usage)


def _build(parts: ActorParts) -> Actor:
    return AnsweringActor(parts.model(), parts.pack(), parts.settings.temperature, parts.settings.max_new_tokens)


ANSWER = ActorKind(_build)
"""The actor, for environments whose actions are free text of any number of lines."""
