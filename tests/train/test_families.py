"""Every family of models with a preset: trained, then served, with the same tokens and the same answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.method.records import Key, Message, Reflection, Task
from retroformer.models.presets import presets
from retroformer.run.store import open_store
from serve.engine.model import Model
from tests.serve.running import http_request, ready_line, start
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.train.families import FAMILIES, save_tiny_of
from tests.train.world import AUTHOR, BAD, GOOD
from train.__main__ import main
from train.base import load_adapter, load_base, load_tokenizer
from train.data.samples import prompt_ids

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
QUESTION = (
    Message(role="system", content="You advise a robot."),
    Message(role="user", content="It opened the fridge and found no mug. Advice:"),
)
TOKENS = 12
"""Length of the answers that are compared."""


def config_of(name: str, folder: Path, layers: str = "all") -> str:
    """Return a config that names the preset and a tiny model of its shape, with adapters on these layers."""
    quick = "{learning_rate: 0.01, epochs: 1}"
    return f"""
run: tiny
environment: {{name: alfworld, source: generated}}
reflector: {{max_new_tokens: 8}}
serve: {{port: 0}}
train:
  preset: {name}
  base_model: {save_tiny_of(name, folder / "base")}
  quantization: none
  lora: {{layers: {layers}}}
  dtype: float32
  max_length: 700
  report_to: none
  weak_reward_model: allow
  batch_size: 4
  micro_batch_tokens: 200
  sft: {quick}
  dpo: {quick}
  reward: {quick}
  ppo: {{learning_rate: 0.01, batch_size: 4, epochs: 1, updates: 1}}
"""


def collect(experiment: Experiment, tasks: int = 6) -> None:
    """Store good and bad advice on a failure of each task, asked for with a system message."""
    store = open_store(experiment)
    for number in range(tasks):
        task = Task(id=f"task-{number}", environment="riddles", split="train")
        add_trajectory(store, Key(arm="collect", task_id=task.id), attempt_at(task))
        asked = (QUESTION[0], Message(role="user", content=f"Task {number} failed. Advice:"))
        for candidate, text in enumerate((GOOD, BAD)):
            key = Key(arm="collect", task_id=task.id, trial=1, candidate=candidate)
            store.add_reflection(key, 0, Reflection(text=text, prompt=asked, author=AUTHOR))
            add_trajectory(store, key, attempt_at(task, (float(text == GOOD),)))
    store.close()


def greedy(experiment: Experiment, stage: str) -> tuple[int, list[int]]:
    """Return the length of the prompt and the most likely answer of a trained adapter, by the code of training."""
    tokenizer, base = load_tokenizer(experiment.train), load_base(experiment.train)
    model: Any = load_adapter(base, experiment.stage_folder(stage)).eval()
    asked = prompt_ids(tokenizer, QUESTION)
    ids = list(asked)
    with torch.no_grad():
        while len(ids) < len(asked) + TOKENS and ids[-1] != tokenizer.eos_token_id:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return len(asked), [token for token in ids[len(asked) :] if token != tokenizer.eos_token_id]


@contextmanager
def served(folder: Path, config: str) -> Iterator[str]:
    """Serve the run in `folder`; yield the address of the endpoint."""
    process = start(folder, config=config)
    try:
        yield ready_line(process).split(" at ")[1]
    finally:
        process.communicate(timeout=300)


def train_and_serve(name: str, folder: Path, stages: tuple[str, ...], layers: str = "all") -> None:
    """Train these stages, and compare the served answer of the last one with that of the code of training."""
    config = config_of(name, folder, layers)
    path = folder / "config.yaml"
    path.write_text(config)
    experiment = load(path)
    collect(experiment)
    for stage in stages:
        main([stage, str(path)])
    recorded = json.loads((experiment.stage_folder(stages[-1]) / "metrics.json").read_text())
    assert recorded["inputs"].get("chat_template_kwargs", {}) == presets()[name].chat_template_kwargs
    length, answer = greedy(experiment, stages[-1])
    messages = [message.model_dump() for message in QUESTION]
    with served(folder, config) as url:
        body = {"model": stages[-1], "messages": messages, "temperature": 0, "max_tokens": TOKENS}
        response = http_request("POST", f"{url}/chat/completions", json=body).json()
        provenance = http_request("GET", f"{url.removesuffix('/v1')}/provenance").json()
    assert response["usage"]["prompt_tokens"] == length
    assert response["choices"][0]["message"]["content"] == load_tokenizer(experiment.train).decode(
        answer, skip_special_tokens=True
    )
    assert answer
    assert provenance["dtype"] == "float32", "the type of the base, which `auto` follows"


@pytest.mark.slow
def test_a_tiny_qwen3_is_trained_and_served_with_the_same_prompt_and_answer(workplace: Path) -> None:
    train_and_serve("qwen3-0.6b", workplace, ("sft", "dpo"))


@pytest.mark.slow
def test_an_adapter_of_the_upper_half_is_trained_by_every_stage_and_served(workplace: Path) -> None:
    train_and_serve("smollm2-1.7b", workplace, ("sft", "dpo", "reward", "ppo"), layers="upper_half")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_model_of_each_family_is_trained_by_every_stage_and_served(workplace: Path, name: str) -> None:
    train_and_serve(name, workplace, ("sft", "dpo", "reward", "ppo"))


def test_there_is_a_tiny_model_for_every_architecture_with_tied_and_untied_embeddings() -> None:
    shapes = {(chosen.architecture, chosen.tied_embeddings) for chosen in presets().values()}
    assert shapes == {(presets()[name].architecture, presets()[name].tied_embeddings) for name in FAMILIES}


def test_a_prompt_of_a_tiny_model_has_special_tokens_and_closed_thinking(workplace: Path) -> None:
    path = workplace / "config.yaml"
    path.write_text(config_of("qwen3-0.6b", workplace))
    tokenizer = load_tokenizer(load(path).train)
    ids = prompt_ids(tokenizer, QUESTION)
    assert tokenizer.convert_ids_to_tokens(ids[:1]) == ["<|im_start|>"]
    assert tokenizer.decode(ids[-6:]) == "<think>\n\n</think>\n\n"
    assert tokenizer.pad_token != tokenizer.eos_token


def test_attention_over_a_window_limits_the_context_that_is_served(tmp_path: Path) -> None:
    """Serving attends to all tokens of a row, which is the model's own attention up to the size of its window."""
    whole = Model(save_tiny_of("mistral-7b", tmp_path / "whole"), {}, "float32")
    sliding = Model(save_tiny_of("mistral-7b", tmp_path / "sliding", sliding_window=64), {}, "float32")
    assert (whole.context_tokens, sliding.context_tokens) == (1024, 64)
