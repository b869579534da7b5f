import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from retroformer.config.file import load
from retroformer.config.sections.train import Lora, Train
from retroformer.errors import ConfigError, MissingInput
from tests.support.runs import ROOT
from tests.train import world
from train.__main__ import main
from train.base import LONGCHAT, add_fresh_adapter, read_config, save_memory
from train.plan.estimate import (
    CARDS,
    GIB,
    NF4,
    USABLE_SHARE,
    PlannedStage,
    case_of,
    cases,
    estimate,
    fit,
    largest,
    seconds,
)
from train.plan.rehearsal import LiveBytes, rehearse, tensors_of
from train.plan.report import describe_plan, table
from train.plan.shape import Shape, shape_of, skeleton
from train.shared_prompt.packed import Group, pack
from train.shared_prompt.reading import hidden_states
from train.stage_kinds import STAGES, Device, stages_of

RANK_4 = Lora(rank=4, alpha=8, targets="attention")
PAPER = Train(base_model=LONGCHAT, lora=RANK_4, dtype="bfloat16")
BATCH = {"batch_size": 4}
OF_THE_METHOD = ["warm", "sft", "reward", "ppo", "dpo", "grpo"]


@pytest.fixture(scope="module")
def longchat() -> Shape:
    return shape_of(read_config(LONGCHAT))


def case(shape: Shape, name: str, samples: int, tokens: int, drawn: int = 0, device: Device = "cuda") -> PlannedStage:
    """Return a stage on LongChat as in the paper, with responses of 128 tokens and micro-batches of `samples`."""
    return PlannedStage(STAGES[name], shape, PAPER, device, samples * tokens, tokens, 128, drawn)


def test_the_built_in_shape_of_longchat_has_the_parameters_of_llama_7b(longchat: Shape) -> None:
    assert longchat.parameters == 6_738_415_616
    assert longchat.head_parameters == 32000 * 4096
    assert len(longchat.matrices) == 7 * 32


def test_a_model_without_a_folder_or_hub_is_refused_in_one_sentence(workplace: Path) -> None:
    for name in ("nobody/unknown-7b", str(workplace)):
        with pytest.raises(MissingInput, match=r"(is not|expected) a folder"):
            read_config(name)


@pytest.mark.parametrize("where", ["attention", "all-linear"])
@pytest.mark.parametrize(("layers", "count"), [("all", 2), ("upper_half", 2), ("upper_half", 3)])
def test_adapter_parameters_are_counted_as_peft_creates_them(
    tiny_base: Path, where: Any, layers: Any, count: int
) -> None:
    config = read_config(str(tiny_base))
    config.num_hidden_layers = count
    lora = Lora(rank=3, targets=where, layers=layers)
    adapted = add_fresh_adapter(skeleton(config), lora)
    assert adapted.get_nb_trainable_parameters()[0] == shape_of(config).adapter_parameters(lora)


def test_a_4_bit_matrix_takes_the_bytes_of_bitsandbytes() -> None:
    from bitsandbytes.nn.modules import Linear4bit

    layer: Any = Linear4bit(512, 1024, bias=False, compress_statistics=True, quant_type="nf4").to("cpu")
    assert layer.weight.quant_state.nested
    taken = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(layer))
    assert taken == pytest.approx(512 * 1024 * NF4, rel=0.01)


def test_longchat_in_4_bits_takes_3_6_gib_and_its_cache_half_a_mebibyte_per_token(longchat: Shape) -> None:
    memory = estimate(case(longchat, "ppo", 1, 2048, 1))
    assert memory.weights / GIB == pytest.approx(3.60, abs=0.01)
    assert memory.kv_cache == 2048 * 2**19
    # Adapter, value head of 4096; policy, SFT policy and reward model; gradient and two moments for the policy's.
    assert memory.adapters_and_optimizer == (2_097_152 + 4096) * 4 * (3 + 1 + 2)


def test_dpo_holds_two_policies_and_computes_some_logits_at_once(longchat: Shape) -> None:
    memory = estimate(case(longchat, "dpo", 3, 2048))
    # Policy and reference; gradient and two moments for the policy's.
    assert memory.adapters_and_optimizer == 2_097_152 * 4 * (2 + 1 + 2)
    # Three tensors of 128 tokens by 4,096 words, their weights in the head, and hidden states with gradients, in fp32.
    assert memory.logits == 4 * (3 * 128 * 4_096 + 4_096 * 4096 + 2 * 3 * 2048 * 4096)
    assert memory.drawing_peak == 0


def test_grpo_is_ppo_without_a_value_head_and_with_live_returns_without_a_reward_model(
    workplace: Path, tiny_base: Path, longchat: Shape
) -> None:
    ppo, scored = (estimate(case(longchat, name, 8, 2048, 8)) for name in ("ppo", "grpo"))
    assert ppo.peak - scored.peak == 4096 * 4 * (3 + 1 + 2)
    config = world.tiny_experiment(workplace, tiny_base, grpo={"learning_rate": 1e-5, "reward": "live"} | BATCH)
    (live,) = (kind for kind in stages_of(config) if kind.name == "grpo")
    alone = estimate(case(longchat, "grpo", 8, 2048, 8)._replace(kind=live))
    assert scored.adapters_and_optimizer - alone.adapters_and_optimizer == 2_097_152 * 4


def test_a_server_that_generates_saves_the_kv_cache_but_not_the_padding(
    workplace: Path, tiny_base: Path, longchat: Shape
) -> None:
    server = {"base_url": "http://127.0.0.1:1/v1"}
    config = world.tiny_experiment(workplace, tiny_base, ppo=BATCH, grpo=BATCH, generation=server)
    served = cases(config, longchat, "cuda", 2048)
    here = cases(world.tiny_experiment(workplace, tiny_base, ppo=BATCH, grpo=BATCH), longchat, "cuda", 2048)
    for mine, elsewhere in zip(map(estimate, here), map(estimate, served), strict=True):
        assert (elsewhere.kv_cache, elsewhere.drawing_peak) == (0, 0)
        assert elsewhere.training_peak == mine.training_peak
    assert {stage.kind.name for stage in here if estimate(stage).kv_cache} == {"ppo", "grpo"}


def test_the_number_of_responses_changes_the_memory_of_sampling_only(longchat: Shape) -> None:
    two, more, fewer = (case(longchat, "ppo", 2, 2048, drawn) for drawn in (2, 8, 1))
    assert [estimate(stage).kv_cache for stage in (two, more, fewer)] == [r * 2048 * 2**19 for r in (2, 8, 1)]
    assert len({estimate(stage).training_peak for stage in (two, more, fewer)}) == 1
    assert estimate(fewer).drawing_peak < estimate(two).drawing_peak < estimate(more).drawing_peak


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_as_many_responses_are_sampled_at_once_as_have_room(longchat: Shape, device: Device) -> None:
    """Beside training on a CPU, and in what a GPU has, at any length."""
    paper = load(ROOT / "configs" / "paper" / "alfworld.yaml", [])
    (kind,) = (kind for kind in stages_of(paper) if kind.name == "ppo")
    for tokens in (512, 2048):
        limit = 40 * GIB if device == "cuda" else 0
        chosen = case_of(paper, kind, longchat, device, tokens, limit)
        memory, more = estimate(chosen), estimate(chosen._replace(drawn=chosen.drawn + 1))
        limit = max(limit, memory.training_peak)
        assert memory.drawing_peak <= limit
        assert more.drawing_peak > limit or chosen.drawn == paper.train.ppo.batch_size
        assert chosen.drawn > 2


def test_a_card_of_80_gib_samples_an_update_of_longchat_in_few_batches(longchat: Shape) -> None:
    paper = load(ROOT / "configs" / "paper" / "alfworld.yaml", [])
    small, large = (
        next(stage for stage in cases(paper, longchat, "cuda", 8192, room * GIB) if stage.kind.name == "ppo")
        for room in (10, 73)
    )
    assert (small.drawn, large.drawn > 10) == (1, True)
    # As computed by hand: 64 responses are read 15 times, 64 x 8,192 tokens of 15 GFLOP each at 40% of 989 TFLOPS.
    assert seconds(large, CARDS[80]) == pytest.approx(300, rel=0.2)
    assert seconds(small, CARDS[80]) > 1.5 * seconds(large, CARDS[80])


@pytest.mark.parametrize("words", [1024, 65_536])
def test_the_memory_of_logits_is_that_of_a_part_of_a_large_vocabulary(
    workplace: Path, tiny_base: Path, words: int
) -> None:
    config = LlamaConfig.from_pretrained(tiny_base)
    config.vocab_size, config.hidden_size, config.num_attention_heads = words, 256, 4
    base = world.save_tiny_model(workplace / "base")
    LlamaForCausalLM(config).bfloat16().save_pretrained(base)
    train: Any = {"dtype": "bfloat16", "max_length": 512, "micro_batch_tokens": 512}
    experiment = world.tiny_experiment(workplace, base, **train)
    planned = case_of(experiment, STAGES["sft"], shape_of(read_config(str(base))), "cpu", 256)
    assert estimate(planned).peak / rehearse(experiment, planned) == pytest.approx(1, abs=0.25)


def test_at_most_one_batch_is_sampled_at_once(workplace: Path, tiny_base: Path, longchat: Shape) -> None:
    config = world.tiny_experiment(workplace, tiny_base, ppo={"learning_rate": 1e-5} | BATCH, quantization="nf4")
    drawn = {stage.kind.name: stage.drawn for stage in cases(config, longchat, "cuda", 512, 10 * GIB)}
    assert {name: drawn[name] for name in ("sft", "reward", "ppo", "dpo")} == {
        "sft": 0,
        "reward": 0,
        "ppo": 4,
        "dpo": 0,
    }


def test_a_warm_start_is_planned_if_advice_is_written_by_rule(workplace: Path, tiny_base: Path) -> None:
    config = world.tiny_experiment(workplace, tiny_base)
    assert [kind.name for kind in stages_of(config)] == ["sft", "reward", "ppo", "dpo", "grpo"]
    written = config.model_copy(update={"collect": config.collect.model_copy(update={"written": 5})})
    assert [kind.name for kind in stages_of(written)] == OF_THE_METHOD


def test_a_gpu_keeps_the_inputs_of_layers_and_one_layer_of_4_3_mebibytes_per_token(longchat: Shape) -> None:
    # In a layer: norms 2 x 16 KiB, the adapters' input 8, queries, keys, values and output 4 x 8, silu 3 x 21.5.
    kept = 32 * 8 + 136.5
    assert estimate(case(longchat, "sft", 1, 8192)).activations / 8192 / 1024 == pytest.approx(kept, rel=0.01)


def test_a_cpu_keeps_every_layer_and_a_mask_for_all_pairs_of_tokens(longchat: Shape) -> None:
    # As above in each of 32 layers; once 2 bytes for each pair of tokens, and for each parameter of the adapter.
    kept = 32 * 136.5 + 2048 * 2 / 1024 + 2_097_152 * 2 / 2048 / 1024
    assert estimate(case(longchat, "sft", 1, 2048, device="cpu")).activations / 2048 / 1024 == pytest.approx(kept)


def test_the_largest_micro_batch_fits_and_the_next_does_not(longchat: Shape) -> None:
    room = USABLE_SHARE["cuda"] * 40 * GIB
    reward = case(longchat, "reward", 32, 4096)
    tokens, settings = fit(reward, room)
    assert estimate(reward._replace(micro_batch_tokens=tokens)).peak <= room
    assert estimate(reward._replace(micro_batch_tokens=tokens + 1)).peak > room
    assert settings == [f"train.micro_batch_tokens={tokens}"]
    assert tokens > 4096
    assert fit(reward, 2.5 * GIB) == (0, [])


def test_fewer_responses_are_sampled_at_once_before_samples_are_shortened(longchat: Shape) -> None:
    drawing_64 = case(longchat, "ppo", 8, 4096, 64)
    room = USABLE_SHARE["cuda"] * 24 * GIB
    assert estimate(drawing_64).drawing_peak > room
    tokens, settings = fit(drawing_64, room)
    assert (tokens > 4096, settings) == (True, [f"train.micro_batch_tokens={tokens}"])


def test_samples_are_shortened_to_the_longest_pair_that_fits(longchat: Shape) -> None:
    room = 6 * GIB
    _, (micro_batch, length) = fit(case(longchat, "dpo", 4, 16384), room)
    longest = int(length.removeprefix("train.max_length="))
    assert micro_batch == f"train.micro_batch_tokens={longest + 128}"
    stage = case(longchat, "dpo", 1, longest)
    assert estimate(stage).peak <= room < estimate(stage._replace(tokens=longest + 1)).peak


@pytest.mark.parametrize("limit", [0, 1, 2, 37, 64])
def test_the_largest_number_that_fits_is_found(limit: int) -> None:
    assert largest(lambda number: number <= limit) == limit


@pytest.mark.parametrize(("checkpointing", "layers"), [(True, "all"), (False, "all"), (False, "upper_half")])
def test_the_estimate_of_a_pass_through_the_trunk_agrees_with_live_bytes(checkpointing: bool, layers: Any) -> None:
    """Gradient checkpointing, which the estimate assumes on a GPU, runs on a CPU here, with a dense mask."""
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    lora = Lora(rank=2, targets="all-linear", layers=layers)
    model: Any = LlamaForCausalLM(config).bfloat16()
    model.set_attn_implementation("sdpa")
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adapted: Any = add_fresh_adapter(model, lora).train()
    save_memory(model, adapted)
    packed = pack([Group([7] * 256, [[8 + number] * 32 for number in range(8)])])
    with LiveBytes([*tensors_of(adapted), *(part for part in packed if isinstance(part, torch.Tensor))]) as live:
        before = live.now
        hidden_BLH = hidden_states(adapted.get_base_model().model, packed)
        total = hidden_BLH.float().sum()
        del hidden_BLH
        total.backward()
    train = Train(quantization="none", lora=lora, dtype="bfloat16")
    device: Device = "cuda" if checkpointing else "cpu"
    memory = estimate(PlannedStage(STAGES["ppo"], shape_of(config), train, device, 512, 288, 32))
    mask = 512 * 512 * 2 if checkpointing else 0
    assert memory.activations + mask + memory.backward_workspace == pytest.approx(live.peak - before, rel=0.1)


def test_without_gradient_checkpointing_a_gpu_keeps_every_layer(longchat: Shape) -> None:
    recomputing = case(longchat, "sft", 1, 4096)
    keeping = recomputing._replace(train=PAPER.model_copy(update={"gradient_checkpointing": False}))
    per_token = estimate(keeping).activations / recomputing.read_at_once / 2**20
    assert per_token == pytest.approx(4.3, abs=0.05), "as docs/results/memory.md says"
    assert estimate(keeping).training_peak > 2 * estimate(recomputing).training_peak


@pytest.mark.slow
@pytest.mark.parametrize("rewards", ["model", "live"])
def test_real_steps_of_every_stage_take_the_estimated_memory(workplace: Path, tiny_base: Path, rewards: str) -> None:
    rate: dict[str, Any] = {"learning_rate": 1e-5}
    updates = rate | BATCH
    server = {"base_url": "http://127.0.0.1:1/v1"} if rewards == "live" else None  # No request is sent.
    config = world.config_file(
        workplace, tiny_base, dpo=rate, grpo=updates | {"reward": rewards}, ppo=updates, generation=server
    )
    tiny_experiment = load(config, ["collect.written=1", "reflector.max_new_tokens=128"])
    text = "\n".join(describe_plan(tiny_experiment, lengths=[192], measure=True))
    off = dict(re.findall(r"^(\w+): .* GiB, the estimate is .* GiB \((.*)%\)\.$", text, re.MULTILINE))
    assert list(off) == OF_THE_METHOD
    assert all(abs(float(percent)) < 20 for percent in off.values()), off


def test_live_bytes_count_each_storage_once_until_it_is_freed() -> None:
    existing = torch.zeros(10)
    with LiveBytes([existing]) as live:
        assert live.now == 40
        tensor = torch.zeros(100)
        view = tensor[:50]
        assert live.now == 440
        del tensor
        assert live.now == 440
        del view
    assert (live.now, live.peak) == (40, 440)


def test_a_plan_of_longchat_says_by_card_and_length_what_fits(
    workplace: Path, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(world.config_file(workplace, tiny_base, quantization="nf4", dtype="bfloat16"))
    main(["plan", config, f"train.base_model={LONGCHAT}", "--card", "12", "--card", "80", "--tokens", "2048,65536"])
    text = capsys.readouterr().out
    assert "6.738 billion parameters" in text
    lines = [line for line in text.splitlines() if line.startswith(("| 12 GiB ", "| 80 GiB ")) and "(" not in line]
    assert [line.split()[1:5:3] for line in lines] == [["12", "2048"], ["12", "65536"], ["80", "2048"], ["80", "65536"]]
    assert "does not fit" not in lines[0]
    shorter = r"does not fit: set train\.micro_batch_tokens=\d+ train\.max_length=\d+ "
    assert len(re.findall(shorter, lines[1])) == 5
    assert re.search(r"\| card +\| tokens \| sft ", text)
    times = [line for line in text.splitlines() if line.startswith("| 80 GiB (H100)")]
    assert re.search(r"\| 2048 +\|( [\d.]+ (s|min), [\d.]+ (s|min|h|d) +\|){5}$", times[0])
    on_cpu = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| CPU, ")]
    assert on_cpu == ["2048", "65536"], "a row for the CPU of this machine at each length"


def test_a_length_that_is_no_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "config.yaml", "--tokens", "2048,many"])
    assert ended.value.code == 2
    assert "Invalid value for '--tokens': '2048,many' is not a list of numbers." in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="stages would train on the GPU of this machine")
def test_a_plan_begins_with_the_device_that_the_stages_would_use(workplace: Path, tiny_base: Path) -> None:
    paragraphs = list(describe_plan(world.tiny_experiment(workplace, tiny_base), lengths=[64, 100_000]))
    tables = [paragraph.partition("\n")[0] for paragraph in paragraphs if paragraph.startswith("GiB on ")]
    assert [title.split(" (")[0] for title in tables[:2]] == ["GiB on this machine's CPU"] * 2
    assert all(title.startswith("GiB on a GPU of 24 GiB for samples of ") for title in tables[2:])
    assert len(tables) == 4
    assert paragraphs[2].startswith("sft fits.\nreward fits.\n")
    assert paragraphs[4].startswith("sft does not fit: set train.micro_batch_tokens=")


def test_a_stage_that_does_not_fit_here_is_not_measured(workplace: Path, tiny_base: Path) -> None:
    paragraphs = list(describe_plan(world.tiny_experiment(workplace, tiny_base), lengths=[1_000_000], measure=True))
    assert [line.split(", its")[0] for line in paragraphs[-5:]] == [
        f"{name}: not tried" for name in ("sft", "reward", "ppo", "dpo", "grpo")
    ]


def test_a_length_without_room_for_a_prompt_is_refused(workplace: Path, tiny_base: Path) -> None:
    with pytest.raises(ConfigError, match="no room for a prompt"):
        list(describe_plan(world.tiny_experiment(workplace, tiny_base), lengths=[8]))


def test_a_table_is_aligned() -> None:
    assert table(["a", "long"], [["word", "1"]]) == "| a    | long |\n| ---- | ---- |\n| word | 1    |"
