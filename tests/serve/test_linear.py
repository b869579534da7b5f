from pathlib import Path

import pytest
import torch

from serve.engine.linear import AdaptedLinear, PackedLinear, Spans, add_adapter, pack, remove_adapter


def test_each_token_gets_the_adapter_of_its_span_and_the_others_none() -> None:
    spans = Spans()
    base = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(base.weight)
    down, up = torch.tensor([[1.0], [0.0]]), torch.tensor([[10.0]])
    layer = AdaptedLinear(base, spans)
    layer.adapters |= {"tens": (down, up), "hundreds": (down, 10 * up)}
    inputs = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]])
    spans.current = (("hundreds", slice(0, 1)), ("none", slice(1, 2)), ("tens", slice(2, 4)))
    with torch.inference_mode():
        assert layer(inputs).flatten().tolist() == [103.0, 7.0, 61.0, 85.0]


def test_an_adapter_of_another_model_changes_no_layer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model.get_output_embeddings = lambda: None  # type: ignore[assignment]
    good, bad = (torch.zeros(2, 1), torch.zeros(1, 3)), (torch.zeros(5, 1), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="other numbers of inputs"):
        add_adapter(model, "new", {"0": good, "1": bad}, Spans())
    with pytest.raises(ValueError, match="7 is none"):
        add_adapter(model, "new", {"0": good, "7": good}, Spans())
    assert not any(isinstance(layer, AdaptedLinear) for layer in model)
    add_adapter(model, "new", {"0": good}, Spans())
    remove_adapter(model, "new")
    assert [isinstance(layer, AdaptedLinear) and not layer.adapters for layer in model] == [True, False]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 16, 300])
def test_a_packed_layer_computes_in_full_precision(bias: bool, tokens: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(576, 192, bias=bias)
    inputs = torch.randn(1, tokens, 576)
    with torch.inference_mode():
        exact = torch.nn.functional.linear(
            inputs.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double()
        )
        torch.testing.assert_close(PackedLinear(linear)(inputs).double(), exact, rtol=0, atol=5e-6)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 kernels")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 16, 300])
def test_a_packed_layer_in_bfloat16_rounds_only_its_result(bias: bool, tokens: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(576, 192, bias=bias, dtype=torch.bfloat16)
    inputs = torch.randn(1, tokens, 576, dtype=torch.bfloat16)
    model = torch.nn.Sequential(linear)
    pack(model)
    assert type(model[0]) is PackedLinear
    with torch.inference_mode():
        exact = torch.nn.functional.linear(
            inputs.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double()
        )
        torch.testing.assert_close(model(inputs).double(), exact, rtol=2**-8, atol=1e-5)


def test_weights_of_other_dtypes_keep_torchs_own_layer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, dtype=torch.float64))
    pack(model)
    assert [type(layer) for layer in model] == [PackedLinear, torch.nn.Linear]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*(tie_word_embeddings|save_embedding_layers):UserWarning")
@pytest.mark.parametrize("option", [{"use_dora": True}, {"target_modules": ["lm_head"]}, {"modules_to_save": ["norm"]}])
def test_an_adapter_that_is_more_than_plain_lora_is_refused(
    sketch: Path, tmp_path: Path, option: dict[str, object]
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from retroformer.errors import MissingInput
    from serve.engine.model import Model

    plain: dict[str, object] = {"r": 2, "target_modules": ["q_proj"]}
    model = AutoModelForCausalLM.from_pretrained(sketch, dtype="float32")
    get_peft_model(model, LoraConfig(**{**plain, **option})).save_pretrained(str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(MissingInput, match="only plain LoRA"):
        Model(sketch, {"other": tmp_path}, "float32")
