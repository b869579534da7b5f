"""Answers to chats with their tokens, and the log-probabilities under the model that wrote them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from retroformer.config.sections.base import Endpoint as Section
from retroformer.endpoint.model import LanguageModel
from retroformer.errors import EndpointFailure
from retroformer.method.records import Message
from tests.serve.handing import World
from tests.serve.running import KEYS
from tests.support.raw_server import RawServer, http

CHAT: dict[str, Any] = {
    "model": "base",
    "messages": [{"role": "user", "content": "Where is the mug?"}],
    "max_tokens": 8,
    "temperature": 1.0,
    "seed": 3,
    "logprobs": True,
    "return_token_ids": True,
}


def test_the_tokens_are_those_of_the_text_with_the_models_own_probabilities(world: World, tiny: Path) -> None:
    status, answer = world.ask("/chat/completions", CHAT)
    assert status == 200, answer
    (choice,) = answer["choices"]
    ids = choice["token_ids"]
    noted = choice["logprobs"]["content"]
    assert [entry["token"] for entry in noted] == [f"token_id:{token}" for token in ids]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    text = tokenizer.decode([token for token in ids if token != tokenizer.eos_token_id])
    assert text == choice["message"]["content"]
    prompt = tokenizer.apply_chat_template(CHAT["messages"], add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1]
    expected_T = logits_TV.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert [entry["logprob"] for entry in noted] == pytest.approx(expected_T.tolist(), abs=1e-4)


def test_tokens_change_no_text(world: World) -> None:
    plain = {name: value for name, value in CHAT.items() if name not in ("logprobs", "return_token_ids")}
    answers = [world.ask("/chat/completions", body)[1]["choices"][0] for body in (CHAT, plain)]
    assert answers[0]["message"] == answers[1]["message"]
    assert "token_ids" not in answers[1]


@pytest.mark.parametrize("changes", [{"stream": True}, {"choices": ["yes"]}])
def test_tokens_that_cannot_be_given_are_refused(world: World, changes: dict[str, Any]) -> None:
    status, answer = world.ask("/chat/completions", CHAT | changes)
    assert status == 400
    assert "in streams, nor with choices" in answer["error"]["message"]


def test_a_client_reads_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEYS[0])
    model = LanguageModel(Section(model="base", api_key_env="TEST_KEY"), world.endpoint.url)
    chat = (Message(role="user", content="Where is the mug?"),)

    async def ask(tokens: bool) -> Any:
        try:
            return await model.complete(chat, temperature=1.0, max_new_tokens=8, seed=3, tokens=tokens)
        finally:
            await model.close()

    completion = asyncio.run(ask(tokens=True))
    assert completion.drawn is not None
    assert len(completion.drawn) == completion.usage.completion_tokens
    assert all(token.log_prob < 0 for token in completion.drawn)


@pytest.mark.parametrize("tokens", [{}, {"token_ids": [], "logprobs": {"content": []}}], ids=["left out", "empty"])
def test_a_server_that_gives_none_has_failed(tokens: dict[str, Any]) -> None:
    choice = {"message": {"role": "assistant", "content": ""}, "finish_reason": "stop", **tokens}
    answer = http("200 OK", json.dumps({"choices": [choice]}).encode())
    with RawServer(lambda _, write: write(answer)) as server:
        model = LanguageModel(Section(model="big"), server.url)

        async def ask() -> None:
            try:
                chat = (Message(role="user", content="?"),)
                await model.complete(chat, temperature=1.0, max_new_tokens=8, tokens=True)
            finally:
                await model.close()

        with pytest.raises(EndpointFailure, match=r"without token ids .* train\.grpo\.reward=stored"):
            asyncio.run(ask())
        assert json.loads(server.requests[0].body)["logprobs"] is True
