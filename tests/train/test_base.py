"""Guards against faults of libraries: each test fails if the fault returns or the guard is not called."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from retroformer.config.sections.train import Lora, Train
from retroformer.errors import ConfigError
from retroformer.models.adapter_weights import layer_of, require_fit
from retroformer.models.precision import computes_bfloat16, guard_bnb_cpu, nf4
from serve.engine.chat_tokenizer import ChatTokenizer
from tests.train.world import save_tiny_model
from train.base import (
    add_fresh_adapter,
    compute_dtype,
    guard_padding,
    keep_trainables_in_fp32,
    load_base,
    load_tokenizer,
    read_config,
    require_same_shape,
    save_memory,
)
from train.plan.shape import skeleton

IDS = torch.arange(3, 259).reshape(8, 32)


@pytest.fixture(scope="module")
def wide_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model that is wide enough for the packed 4-bit kernels of CPUs."""
    return save_tiny_model(tmp_path_factory.mktemp("wide"), hidden=128)


def four_bit(base: Path, *, guarded: bool) -> Any:
    from transformers import AutoModelForCausalLM

    train = Train(base_model=str(base), dtype="bfloat16")
    if guarded:
        return load_base(train)
    return AutoModelForCausalLM.from_pretrained(base, quantization_config=nf4(torch.bfloat16), dtype=torch.bfloat16)


def gradients(model: Any) -> torch.Tensor:
    """Return the gradients of an adapter with fixed weights as one vector."""
    adapted: Any = add_fresh_adapter(model, Lora())
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    adapted.train()
    with torch.autocast("cpu", torch.bfloat16):
        adapted(input_ids=IDS, labels=IDS).loss.backward()
    gradients = torch.cat(
        [parameter.grad.flatten() for parameter in adapted.parameters() if parameter.grad is not None]
    )
    adapted.unload()
    return gradients


def cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


def test_gradients_through_a_4_bit_base_are_right_after_a_pass_in_eval_mode(wide_base: Path) -> None:
    model = four_bit(wide_base, guarded=True)
    fresh = gradients(model)
    model.eval()
    with torch.no_grad():
        model(input_ids=IDS)
    assert cosine(fresh, gradients(model)) > 0.99


@pytest.mark.filterwarnings("ignore:bitsandbytes.*autograd:UserWarning")
def test_the_guard_repairs_weights_that_were_already_repacked(wide_base: Path) -> None:
    model = four_bit(wide_base, guarded=False)
    fresh = gradients(model)
    model.eval()
    with torch.no_grad():
        model(input_ids=IDS)
    weights = [module.weight for module in model.modules() if type(module).__name__ == "Linear4bit"]
    if not any(getattr(weight.quant_state, "packing_format_for_cpu", False) for weight in weights):
        pytest.skip("this CPU does not repack 4-bit weights")
    assert cosine(fresh, gradients(model)) < 0.9, "the trap is gone: the guard may go, too"
    guard_bnb_cpu(model)
    # Repacking has rounded the scales of the weights, and that is not undone.
    assert cosine(fresh, gradients(model)) > 0.95


def test_4_bit_weights_are_those_of_the_files_numbers_in_every_dtype(tmp_path: Path) -> None:
    """LongChat's files are in float16, of which bfloat16 rounds some numbers to others of 4 bits."""
    base = save_tiny_model(tmp_path / "base", hidden=128)
    load_base(Train(base_model=str(base), quantization="none", dtype="float32")).half().save_pretrained(base)
    models = [load_base(Train(base_model=str(base), dtype=dtype)) for dtype in ("bfloat16", "float32")]
    weights = [model.model.layers[0].mlp.up_proj.weight for model in models]
    assert torch.equal(*(weight.data for weight in weights))
    assert torch.equal(*(weight.quant_state.absmax for weight in weights))
    assert [model.dtype for model in models] == [weight.quant_state.dtype for weight in weights]
    assert [model.dtype for model in models] == [torch.bfloat16, torch.float32]
    assert all(model.lm_head.weight.dtype == model.dtype for model in models)


def test_bfloat16_on_a_gpu_without_it_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    assert compute_dtype(Train()) == "float32"
    with pytest.raises(ConfigError, match=r"GPU, Tesla T4, does not compute bfloat16: set train.dtype=auto\.$"):
        compute_dtype(Train(dtype="bfloat16"))


def test_a_step_at_the_papers_rate_changes_every_weight() -> None:
    adapter = torch.nn.Linear(64, 64).bfloat16()
    keep_trainables_in_fp32(adapter)
    before = adapter.weight.detach().clone()
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-5, weight_decay=0.0)
    adapter(torch.randn(4, 64)).square().sum().backward()
    optimizer.step()
    assert (adapter.weight != before).float().mean() > 0.99


def test_padding_is_never_the_end_of_a_turn(tiny_base: Path) -> None:
    tokenizer = load_tokenizer(Train(base_model=str(tiny_base)))
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.add_tokens("<pad>")
    guard_padding(tokenizer)
    assert tokenizer.pad_token == "<pad>"


def test_a_tokenizer_without_any_other_token_for_padding_is_refused() -> None:
    bare = SimpleNamespace(
        pad_token_id=2, eos_token_id=2, eos_token="</s>", unk_token=None, get_vocab=lambda: {"</s>": 2, "a": 3}
    )
    with pytest.raises(ConfigError, match="no token for padding"):
        guard_padding(bare)


def test_a_tokenizer_without_a_chat_template_is_refused_before_training(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_tokenizer(Train(base_model=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"it has none; put the model's chat_template\.jinja into its folder"):
        ChatTokenizer(tmp_path).render([{"role": "user", "content": "Go."}])


def test_the_base_uses_no_cache_in_training(tiny_base: Path) -> None:
    assert load_base(Train(base_model=str(tiny_base), quantization="none")).config.use_cache is False


@pytest.mark.parametrize("chosen", [True, False])
def test_a_config_chooses_whether_a_gpu_computes_layers_again(tiny_base: Path, chosen: bool) -> None:
    elsewhere = load_base(Train(base_model=str(tiny_base), quantization="none")).to("meta")
    save_memory(elsewhere, elsewhere, gradient_checkpointing=chosen)
    assert elsewhere.is_gradient_checkpointing is chosen


def test_an_adapter_of_another_shape_than_the_config_asks_for_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    train = Train(base_model=str(tiny_base), quantization="none")
    adapted: Any = add_fresh_adapter(load_base(train), Lora(rank=2, targets="attention"))
    adapted.save_pretrained(tmp_path / "warm")
    require_same_shape(load_base(train), tmp_path / "warm", Lora(rank=2, targets="attention"))
    with pytest.raises(ConfigError, match=r"targets and layers \(2, 8.0, 'attention', 'all'\)"):
        require_same_shape(load_base(train), tmp_path / "warm", Lora(rank=4))


@pytest.mark.parametrize("targets", ["attention", "all-linear"])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize(("count", "upper"), [(1, {0}), (3, {1, 2}), (4, {2, 3})])
def test_an_adapter_of_the_upper_half_has_all_projections_of_these_layers_and_no_others(
    tiny_base: Path, targets: Any, scores: bool, count: int, upper: set[int]
) -> None:
    config = read_config(str(tiny_base))
    config.num_hidden_layers = count
    adapted = {
        layers: add_fresh_adapter(skeleton(config, scores=scores), Lora(targets=targets, layers=layers), scores=scores)
        for layers in get_args(Lora.model_fields["layers"].annotation)
    }
    names = {
        layers: {name for name, _ in model.named_parameters() if "lora_" in name} for layers, model in adapted.items()
    }
    assert names["upper_half"] == {name for name in names["all"] if layer_of(name.partition("model.")[2]) in upper}


def test_an_adapter_of_other_layers_than_the_config_asks_for_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    train = Train(base_model=str(tiny_base), quantization="none")
    upper, every = Lora(layers="upper_half"), Lora()
    for name, lora in (("upper", upper), ("every", every)):
        add_fresh_adapter(load_base(train), lora).save_pretrained(tmp_path / name)
    require_same_shape(load_base(train), tmp_path / "upper", upper)
    for name, lora, layers in (("upper", every, r"\[1\]"), ("every", upper, "'all'")):
        with pytest.raises(ConfigError, match=rf"layers \(4, 8.0, 'all-linear', {layers}\)"):
            require_same_shape(load_base(train), tmp_path / name, lora)


def test_an_adapter_of_the_upper_half_must_fit_the_base_like_any_other(tiny_base: Path, tmp_path: Path) -> None:
    train = Train(base_model=str(tiny_base), quantization="none")
    add_fresh_adapter(load_base(train), Lora(layers="upper_half")).save_pretrained(tmp_path / "warm")
    require_fit(load_base(train), tmp_path / "warm")
    settings = json.loads((tmp_path / "warm" / "adapter_config.json").read_text())
    changed = settings | {"layers_to_transform": [0, 1]}
    (tmp_path / "warm" / "adapter_config.json").write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match=r"layers\.0\..* has no weights there"):
        require_fit(load_base(train), tmp_path / "warm")


def test_training_computes_in_bfloat16_only_on_machines_with_its_instructions(tiny_base: Path) -> None:
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if not torch.cuda.is_available() and flags:
        assert computes_bfloat16(torch) is any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    fast = "bfloat16" if computes_bfloat16(torch) else "float32"
    assert compute_dtype(Train()) == fast
    assert compute_dtype(Train(dtype="bfloat16")) == "bfloat16"
    assert load_base(Train(base_model=str(tiny_base), quantization="none")).dtype == getattr(torch, fast)
