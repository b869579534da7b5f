"""Tokenizer and chat template of a base model, and its limits: what prompts need without the weights."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from retroformer.models.loading import end_tokens, load_tokenizer, longest_row, model_config
from retroformer.models.prompt_template import encode, mark, prompt_text


class ChatTokenizer:
    """Turns chats and texts into tokens and back. Its methods may be called from any thread."""

    def __init__(self, folder: Path, template_settings: Mapping[str, JsonValue] | None = None) -> None:
        """Read the files of the model in `folder`; `template_settings` are those of `train.chat_template_kwargs`.

        Raises DamagedFile if they cannot be read, ConfigError if the chat template does not read a setting.
        """
        self._tokenizer = load_tokenizer(folder, template_settings)
        self._config = model_config(folder).get_text_config()
        self.vocabulary = int(self._config.vocab_size)
        self.stop_tokens = end_tokens(folder, self._tokenizer)
        """Tokens that end a turn; the first one is that of training."""
        self._longest_token = max(map(len, self._tokenizer.get_vocab()))

    @cached_property
    def context_tokens(self) -> int:
        """Largest number of tokens of a prompt and its answer; not every unsupported architecture states it."""
        return int(min(self._config.max_position_embeddings, longest_row(self._config)))

    @property
    def longest_text(self) -> int:
        """Length in characters above which a text certainly has more tokens than the context.

        Encoding a text of a few megabytes takes seconds, so a text that cannot fit is not encoded.
        """
        return self.context_tokens * self._longest_token

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a rendered prompt itself, without a BOS token."""
        return encode(self._tokenizer, text)

    def encode_content(self, text: str) -> list[int]:
        """Return the tokens of a text in which nothing is a control token."""
        return encode(self._tokenizer, mark(self._tokenizer, text))

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.backend_tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def turn(self, text: str) -> list[int]:
        """Return the tokens of `text` as a whole answer, as in training: with the end-of-turn token."""
        return [*self.encode_content(text), self.stop_tokens[0]]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt that the model's chat template makes of `messages`, ready for the answer."""
        return prompt_text(self._tokenizer, messages)
