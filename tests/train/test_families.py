"""Every family of models with a preset: trained, then served, with the same tokens and the same answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.sections.train import Lora, Train
from retroformer.errors import ConfigError
from retroformer.method.records import Key, Message, Reflection, Task
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import end_tokens, load_adapter
from retroformer.models.presets import presets
from retroformer.run.store import open_store
from serve.engine.model import BASE, Model
from serve.engine.prefixes import PrefixStore
from serve.engine.slots import KeyValueSlots
from serve.requests import Chat, RequestMessage, prompt_tokens
from tests.serve.running import http_request, ready_line, start
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.train.families import FAMILIES, LIMITS, save_tiny_of
from tests.train.world import AUTHOR, BAD, GOOD
from train.__main__ import main
from train.base import add_fresh_adapter, load_base, load_tokenizer
from train.data.samples import prompt_ids, response_ids
from train.rl.sampling import SamplingSettings, ended_responses

QUESTION = (
    Message(role="system", content="You advise a robot."),
    Message(role="user", content="It opened the fridge and found no mug. Advice:"),
)
DRAW = SamplingSettings(max_new_tokens=4, at_once=8, pad_id=0, ends=(2,), seed=0)
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


def test_only_rows_that_are_read_alike_are_served(tmp_path: Path) -> None:
    """Serving attends to all tokens of a row, with the same rotary frequencies in all rows of a pass.

    That is the model's own attention up to the size of its window, or until longrope takes other frequencies.
    """
    served = {
        name: Model(save_tiny_of("mistral-7b", tmp_path / name, **limit), {}, "float32").context_tokens
        for name, limit in LIMITS.items()
    }
    assert served == {"whole": 1024, "sliding": 64, "switching": 64, "chunked": 64}


SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "eos_token_id": 258,
}
PLAIN_SHAPE = {name: value for name, value in SHAPE.items() if name not in ("head_dim", "num_key_value_heads")}
OLD_SHAPE: dict[str, Any] = {"vocab_size": 300, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512}
SLIDING = {"sliding_window": 16}
FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FEW_EXPERTS |= {"shared_expert_intermediate_size": 32}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
ARCHITECTURES: dict[str, tuple[dict[str, Any], str]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "mixtral", "olmo2", "smollm3", "cohere"), (SHAPE, "")),
    **dict.fromkeys(("starcoder2", "gemma", "phi", "arcee", "llama4_text"), (SHAPE, "")),
    **dict.fromkeys(("gemma3_text", "cohere2", "ministral"), (SHAPE | SLIDING, "")),
    "gemma3": ({"text_config": SHAPE | SLIDING, "vision_config": VISION}, ""),
    "granite": (SHAPE | {"attention_multiplier": 0.2, "logits_scaling": 2.0}, ""),
    **dict.fromkeys(("phi3", "glm4"), (SHAPE | {"pad_token_id": 0}, "")),
    "gpt_neox": (PLAIN_SHAPE, ""),
    "opt": (PLAIN_SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64}, ""),
    "gemma2": (SHAPE | SLIDING, "its attention has 'softcap'"),
    "gpt_oss": (SHAPE | SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}, "its attention has 's_aux'"),
    "gpt2": (OLD_SHAPE, "its weights are not those of linear layers"),
    "gptj": (OLD_SHAPE | {"rotary_dim": 8}, "attention of 0 of 4 layers can be replaced"),
    "bloom": (OLD_SHAPE | {"hidden_size": 64}, "attention of 0 of 4 layers can be replaced"),
    "mpt": (OLD_SHAPE | {"d_model": 64, "n_heads": 4, "n_layers": 4}, "attention of 0 of 4 layers can be replaced"),
    "falcon": (PLAIN_SHAPE, "attention of 0 of 4 layers can be replaced"),
    "mamba": (PLAIN_SHAPE, "attention of 0 of 4 layers can be replaced"),
    **dict.fromkeys(("stablelm", "nemotron"), (SHAPE, "its layers hide the rows of a batch")),
    "qwen3_next": (SHAPE | FEW_EXPERTS, "attention of 1 of 4 layers can be replaced"),
}
"""Settings of a random model of each architecture, and why it is refused; empty if it is trained and served."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_computed_as_transformers_computes_it_or_refused(name: str, tmp_path: Path) -> None:
    """Before anything is trained or served, in one sentence, and for the same models in training and serving."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings, reason = ARCHITECTURES[name]
    save_tiny_of("qwen3-0.6b", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.manual_seed(0)
    own = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings), dtype=torch.float32).eval()
    own.save_pretrained(tmp_path)
    train = Train(base_model=str(tmp_path), quantization="none", dtype="float32")
    if reason:
        for load_it in (lambda: load_base(train), lambda: Model(tmp_path, {}, "float32")):
            with pytest.raises(ConfigError, match=rf"^The base model at \S+ has an architecture \({name}\)[^\n]*\.$"):
                load_it()
        with pytest.raises(ConfigError, match=reason):
            load_base(train)
        return
    served, ids = Model(tmp_path, {}, "float32"), [7, 8, 9, 30, 41, 5, 77, 100, 3, 4, 5, 6, 7, 88]
    slots = KeyValueSlots(served.geometry, 256, store := PrefixStore(served.geometry, 256))
    slots.add(store.prefix([]))
    served.forward([ids[:9]], slots, [BASE])
    logits_V = served.forward([ids[9:]], slots, [BASE]).logits_BV[0]
    trained = load_base(train)
    with torch.no_grad():
        expected_V, trained_V = (model(input_ids=torch.tensor([ids])).logits[0, -1] for model in (own, trained))
    for got_V in (logits_V, trained_V):
        assert torch.allclose(got_V, expected_V, rtol=1e-4, atol=1e-4 * float(expected_V.abs().max()))


def test_attention_layers_that_a_model_lacks_are_refused_by_name(tmp_path: Path) -> None:
    from transformers import Phi3Config, Phi3ForCausalLM

    model = Phi3ForCausalLM(Phi3Config(**SHAPE | {"pad_token_id": 0}))
    with pytest.raises(ConfigError, match=r"this base model has no q_proj: set train\.lora\.targets=all-linear\.$"):
        add_fresh_adapter(model, Lora(targets="attention"))


@pytest.mark.parametrize("name", [*FAMILIES, "embedded"])
def test_control_tokens_in_a_text_are_read_as_text_in_training_and_serving(name: str, tmp_path: Path) -> None:
    folder = base_model_folder("embedded") if name == "embedded" else save_tiny_of(name, tmp_path)
    tokenizer, own = load_tokenizer(Train(base_model=str(folder), preset=None)), AutoTokenizer.from_pretrained(folder)
    added = [token.content for token in own.added_tokens_decoder.values()]
    said = " ".join(["Look.", *added, *added, "".join(added), "<|im_<|im_end|>end|>", "\ufdd0<\ufdd0|im_end|>"])
    for message in (said, *added):
        asked = (Message(role="user", content=message),)
        ids = prompt_ids(tokenizer, asked)
        plain = prompt_ids(tokenizer, (Message(role="user", content="Look."),))
        control = set(own.added_tokens_decoder)
        assert [token for token in ids if token in control] == [token for token in plain if token in control]
        assert own.decode(ids) == own.decode(plain).replace("Look.", message.replace("\ufdd0", ""))
        answer = response_ids(tokenizer, message)
        assert not control & set(answer[:-1])
        assert own.decode(answer[:-1]) == message.replace("\ufdd0", "")
    if name in ("embedded", "qwen3-0.6b"):
        served = Model(folder, {}, "float32")
        chat = Chat([RequestMessage(role="user", content=said)])
        assert prompt_tokens(served, chat) == prompt_ids(tokenizer, (Message(role="user", content=said),))
        assert prompt_tokens(served, said) == served.turn(said)[:-1] == response_ids(tokenizer, said)[:-1]
        assert served.encode(added[-1]) == [own.convert_tokens_to_ids(added[-1])]


def test_a_text_that_looks_like_a_control_token_once_it_is_normalised_is_none(tmp_path: Path) -> None:
    from tokenizers import AddedToken, normalizers

    folder = save_tiny_of("qwen3-0.6b", tmp_path)
    library = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    library.normalizer = normalizers.NFKC()
    library.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=True)])
    library.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(Train(base_model=str(folder)))
    for text in ("\uff1c|im_end|\uff1e", "<|im_end|>"):
        assert tokenizer.eos_token_id not in response_ids(tokenizer, text)[:-1]
        ids = prompt_ids(tokenizer, (Message(role="user", content=text),))
        assert ids.count(tokenizer.eos_token_id) == 1, "that of the template"


def test_an_ordinary_text_has_the_tokens_that_it_had(tmp_path: Path) -> None:
    tokenizer, own = load_tokenizer(Train()), AutoTokenizer.from_pretrained(base_model_folder("embedded"))
    for text in ("> go to shelf 12\n  <b>5 < 6</b> [x] |im_end| \u00e4\U0001f600", " \n\t  a", "<|im_end"):
        turns = [{"role": "user", "content": text}]
        rendered = own.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        assert prompt_ids(tokenizer, (Message(role="user", content=text),)) == own(rendered).input_ids
        assert response_ids(tokenizer, text)[:-1] == own(text).input_ids


def test_a_turn_ends_with_any_end_of_the_tokenizer_the_model_and_the_template(tmp_path: Path) -> None:
    """In the form of Llama 3 and Gemma: three files name different ends."""
    folder = save_tiny_of("llama3.2-1b", tmp_path / "base")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": "<|end_of_text|>"}))
    own = AutoTokenizer.from_pretrained(folder)
    text, turn, other = own.convert_tokens_to_ids(["<|end_of_text|>", "<|eot_id|>", "<|end_header_id|>"])
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | {"eos_token_id": text})
    )
    generation = folder / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [other]}))
    served = Model(folder, {}, "float32")
    assert served.stop_tokens == end_tokens(folder, own) == (text, turn, other)
    assert served.turn("Look.")[-1] == text
    generation.unlink()
    assert Model(folder, {}, "float32").stop_tokens == (text, turn)
    responses = ended_responses(
        [[5]] * 3, torch.tensor([[7, turn, 8], [7, 8, text], [7, 8, 9]]), DRAW._replace(ends=(text, turn))
    )
    assert responses.ended_B.tolist() == [True, True, False]
    assert responses.mask_BT.sum(dim=1).tolist() == [2, 3, 3]


def test_a_tokenizer_without_an_end_or_a_template_without_text_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_of("qwen3-0.6b", tmp_path / "base")
    parts = (
        "{% for message in messages %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(parts)
    for load_it in (lambda: load_tokenizer(Train(base_model=str(folder))), lambda: Model(folder, {}, "float32")):
        with pytest.raises(ConfigError, match=r"^The chat template of the model in \S+ writes nothing[^\n]*\.$"):
            load_it()
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": None}))
    for load_it in (lambda: load_tokenizer(Train(base_model=str(folder))), lambda: Model(folder, {}, "float32")):
        with pytest.raises(ConfigError, match=r"^The tokenizer in \S+ has no token that ends a turn: [^\n]*\.$"):
            load_it()


def test_a_tokenizer_that_is_told_to_cut_and_pad_does_neither(tmp_path: Path) -> None:
    """As files are that were saved after training with a maximum length; the server asks the library directly."""
    folder = save_tiny_of("qwen3-0.6b", tmp_path / "base")
    whole = Model(folder, {}, "float32").encode("Look in the fridge.")
    library = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.save(str(folder / "tokenizer.json"))
    assert Model(folder, {}, "float32").encode("Look in the fridge.") == whole
    assert response_ids(load_tokenizer(Train(base_model=str(folder))), "Look in the fridge.")[:-1] == whole
