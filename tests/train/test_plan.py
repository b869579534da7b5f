import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from retroformer.config_file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.train_sections import Lora
from tests.train import world
from train.__main__ import main
from train.architecture import CARDS, Architecture, Matrix, architecture, read_config, skeleton
from train.base import leave_casting_to_autocast, load_tokenizer, lora_config
from train.dataset import prompt_ids, response_ids
from train.memory import (
    USABLE_SHARE,
    Load,
    Setting,
    StageMemory,
    adapter_parameters,
    largest_micro_batch,
    nf4_bytes,
)
from train.plan import GIB, memories, plan, table
from train.rehearsal import LiveBytes, tensors_of
from train.stage_kind import KINDS, StageName, kinds
from train.workload import throughput, workload

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LONGCHAT = "lmsys/longchat-7b-16k"
RANK_4 = Lora(rank=4, alpha=8, targets="attention")
KIND = {kind.name: kind for kind in KINDS}
BATCH = {"batch_size": 4, "micro_batch_size": 2}


@pytest.fixture(scope="module")
def longchat() -> Architecture:
    return architecture(read_config(LONGCHAT).config)


def test_the_known_shape_of_longchat_has_the_parameters_of_llama_7b_and_its_condensed_positions(
    longchat: Architecture,
) -> None:
    assert longchat.parameters == 6_738_415_616
    assert longchat.head_parameters == 32000 * 4096
    assert len(longchat.matrices) == 7 * 32
    assert CARDS[LONGCHAT]["rope_parameters"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}


def test_adapters_on_queries_and_values_have_about_the_sizes_that_the_paper_tells(longchat: Architecture) -> None:
    assert adapter_parameters(longchat, Lora(rank=1, targets="attention")) == 524_288  # 0.53 million in the paper
    assert adapter_parameters(longchat, RANK_4) == 2_097_152  # 2.25 million in the paper


def test_a_model_without_a_folder_a_hub_and_a_card_ends_as_one_sentence() -> None:
    with pytest.raises(MissingInput, match="known shapes"):
        read_config("nobody/unknown-7b")


@pytest.mark.parametrize("where", ["attention", "all-linear"])
def test_adapter_parameters_are_those_that_peft_makes(tiny_base: Path, where: Any) -> None:
    from peft import get_peft_model

    config = read_config(str(tiny_base)).config
    lora = Lora(rank=3, targets=where)
    adapted = get_peft_model(skeleton(config), lora_config(lora))
    assert adapted.get_nb_trainable_parameters()[0] == adapter_parameters(architecture(config), lora)


def test_a_4_bit_matrix_takes_what_bitsandbytes_makes_of_it() -> None:
    from bitsandbytes.nn.modules import Linear4bit

    layer: Any = Linear4bit(256, 512, bias=False, compress_statistics=True, quant_type="nf4").to("cpu")
    assert layer.weight.quant_state.nested
    taken = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(layer))
    assert nf4_bytes(Matrix("q_proj", 256, 512)) == pytest.approx(taken, rel=0.01)


def test_a_4_bit_matrix_of_4096_squared_takes_half_a_byte_a_weight_and_a_64th_for_the_scales() -> None:
    # 8 MiB of weights, 262,144 scales of a byte, 1,024 scales of theirs of 4 bytes, 1,092 bytes of tables.
    assert nf4_bytes(Matrix("q_proj", 4096, 4096)) == 8_388_608 + 262_144 + 4_096 + 1_092


def test_longchat_in_4_bits_weighs_3_6_gib_once_and_its_cache_half_a_mebibyte_a_token(longchat: Architecture) -> None:
    memory = StageMemory(KIND["ppo"], longchat, Setting(True, 2, RANK_4, True, True), Load(1, 2048, 128))
    assert memory.weights / GIB == pytest.approx(3.60, abs=0.01)
    assert memory.cache == 2048 * 2**19
    # Adapter, value head of 4096; policy, SFT policy and reward model; gradient and two moments for the policy's.
    assert memory.held - memory.weights == (2_097_152 + 4096) * 4 * (3 + 1 + 2)


def test_dpo_holds_two_policies_and_reads_both_texts_of_a_pair(longchat: Architecture) -> None:
    memory = StageMemory(KIND["dpo"], longchat, Setting(True, 2, RANK_4, True, True), Load(3, 2048, 128))
    assert memory.rows == 6
    # Policy and reference; gradient and two moments for the policy's.
    assert memory.held - memory.weights == 2_097_152 * 4 * (2 + 1 + 2)
    # Three tensors of 6 x 128 tokens by 32,000 words, and the head's weights, in fp32.
    assert memory.logits == 4 * (3 * 6 * 128 * 32_000 + 32_000 * 4096)
    assert memory.drawing_peak == 0


def test_grpo_is_ppo_without_a_value_head_and_with_live_returns_without_a_reward_model(
    workplace: Path, tiny_base: Path, longchat: Architecture
) -> None:
    setting, load = Setting(True, 2, RANK_4, True, True), Load(8, 2048, 128)
    ppo, scored = (StageMemory(KIND[name], longchat, setting, load) for name in ("ppo", "grpo"))
    assert ppo.held - scored.held == 4096 * 4 * (3 + 1 + 2)
    assert ppo.peak - ppo.held == scored.peak - scored.held
    page = world.experiment(workplace, tiny_base, grpo={"learning_rate": 1e-5, "reward": "live"} | BATCH)
    (live,) = (kind for kind in kinds(page) if kind.name == "grpo")
    assert scored.held - StageMemory(live, longchat, setting, load).held == 2_097_152 * 4


def test_where_a_server_draws_there_is_no_cache_here_but_responses_are_padded_all_the_same(
    workplace: Path, tiny_base: Path, longchat: Architecture
) -> None:
    drawn = {"learning_rate": 1e-5, "generation": {"base_url": "http://127.0.0.1:1/v1"}} | BATCH
    page = world.experiment(workplace, tiny_base, ppo=drawn, grpo=drawn)
    setting, load = Setting(True, 2, RANK_4, True, True), Load(1, 2048, 128)
    for kind in kinds(page):
        here, elsewhere = (StageMemory(one, longchat, setting, load) for one in (KIND[kind.name], kind))
        assert (elsewhere.cache, elsewhere.drawing_peak) == (0, 0)
        assert (elsewhere.mask, elsewhere.training_peak) == (here.mask, here.training_peak)
        assert (here.mask > 0) == (kind.name in ("reward", "ppo", "dpo", "grpo"))
        assert (here.cache > 0) == (kind.name in ("ppo", "grpo"))


def test_drawing_has_a_batch_of_its_own_and_training_is_the_same(longchat: Architecture) -> None:
    setting = Setting(True, 2, RANK_4, True, True)
    like_training, more, fewer = (
        StageMemory(KIND["ppo"], longchat, setting, Load(2, 2048, 128, drawn)) for drawn in (None, 8, 1)
    )
    assert [one.cache for one in (like_training, more, fewer)] == [rows * 2048 * 2**19 for rows in (2, 8, 1)]
    assert more.drawing_peak == like_training.with_micro_batch(8).drawing_peak
    assert {one.training_peak for one in (like_training, more, fewer)} == {like_training.training_peak}
    # Keys and values of LongChat are dear: who draws them one by one trains on more at once.
    one_at_a_time = (largest_micro_batch(one, 24 * GIB) for one in (like_training, fewer))
    assert next(one_at_a_time) < next(one_at_a_time)


def test_no_more_is_drawn_than_a_batch_has_and_who_does_not_fit_is_told_where(
    workplace: Path, tiny_base: Path, longchat: Architecture
) -> None:
    drawn = {"learning_rate": 1e-5, "draw_batch_size": 2_000_000} | BATCH
    page = world.experiment(workplace, tiny_base, ppo=drawn)
    setting = Setting(True, 2, RANK_4, True, True)
    stages = {one.kind.name: one for one in memories(page, longchat, setting, 4096)}
    assert stages["ppo"].load.drawn == BATCH["batch_size"]
    assert stages["grpo"].load.drawn is None
    told = "\n".join(plan([str(world.page(workplace, tiny_base, ppo=drawn)), "--card=0.0001", "--tokens=192"]))
    (row,) = [line for line in told.splitlines() if line.startswith("| 0.0001 GiB")]
    assert [" to draw)" in cell for cell in row.split("|")[3:8]] == [False, False, True, False, False]


def test_where_policies_are_compared_nothing_is_dropped_out(longchat: Architecture) -> None:
    noisy = RANK_4.model_copy(update={"dropout": 0.1})
    kept = {
        name: [
            StageMemory(KIND[name], longchat, Setting(True, 2, lora, True, False), Load(1, 2048, 128)).activations
            for lora in (RANK_4, noisy)
        ]
        for name in KIND
    }
    assert {name for name, (without, dropped) in kept.items() if without == dropped} == {"ppo", "dpo", "grpo"}


def test_a_warm_start_is_planned_where_advice_is_written_by_rule(workplace: Path, tiny_base: Path) -> None:
    page = world.experiment(workplace, tiny_base)
    assert [kind.name for kind in kinds(page)] == ["sft", "reward", "ppo", "dpo", "grpo"]
    written = page.model_copy(update={"collect": page.collect.model_copy(update={"written": 5})})
    assert [kind.name for kind in kinds(written)] == list(KIND)


def test_without_checkpointing_a_token_of_longchat_keeps_4_3_mebibytes_and_with_it_a_sixteenth(
    longchat: Architecture,
) -> None:
    kept = {
        checkpointing: StageMemory(
            KIND["sft"], longchat, Setting(True, 2, RANK_4, True, checkpointing), Load(1, 8192, 128)
        )
        for checkpointing in (False, True)
    }
    # In a layer: norms 2 x 16 KiB, the adapters' input 8, queries, keys, values and output 4 x 8, silu 3 x 21.5.
    assert kept[False].activations / 8192 / 2**20 == pytest.approx(32 * 136.5 / 1024, rel=0.02)
    assert kept[True].activations < kept[False].activations / 10


def test_the_largest_micro_batch_fits_and_the_next_does_not(longchat: Architecture) -> None:
    memory = StageMemory(KIND["reward"], longchat, Setting(True, 2, RANK_4, True, True), Load(1, 4096, 128))
    fits = largest_micro_batch(memory, 40 * GIB)
    assert fits > 1
    assert memory.with_micro_batch(fits).peak <= USABLE_SHARE * 40 * GIB < memory.with_micro_batch(fits + 1).peak
    assert largest_micro_batch(memory, 4 * GIB) == 0


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["ppo", "dpo"])
def test_a_pass_through_the_trunk_takes_what_the_arithmetic_says(fused: bool, name: StageName) -> None:
    """Also with the fused attention and the checkpoints of a GPU, which the CPU can compute, too."""
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=500,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    lora = Lora(rank=2, targets="all-linear")
    model: Any = LlamaForCausalLM(config).bfloat16()
    model.set_attn_implementation("sdpa" if fused else "eager")
    if fused:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adapted: Any = get_peft_model(model, lora_config(lora)).train()
    if name == "ppo":
        leave_casting_to_autocast(adapted)
    ids_BL = torch.randint(3, 500, (2, 256))
    attention_BL = torch.ones_like(ids_BL)
    attention_BL[1, -1] = 0
    with LiveBytes(tensors_of(adapted)) as live:
        before = live.now
        # As the stages do it: PPO under autocast, and DPO not.
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "ppo"):
            trunk = adapted.get_base_model().model
            hidden_BLH = trunk(input_ids=ids_BL, attention_mask=attention_BL, use_cache=False).last_hidden_state
        total = hidden_BLH.float().sum()
        del hidden_BLH
        total.backward()
    kind, setting = KIND[name], Setting(False, 2, lora, fused, fused)
    memory = StageMemory(kind, architecture(config), setting, Load(2 // kind.texts, 256, 32))
    assert memory.activations + memory.backward_workspace == pytest.approx(live.peak - before, rel=0.1)


@pytest.mark.parametrize("rewards", ["model", "live"])
def test_real_steps_of_every_stage_take_what_the_plan_says(workplace: Path, tiny_base: Path, rewards: str) -> None:
    rate: dict[str, Any] = {"learning_rate": 1e-5} | BATCH
    groups = rate | {"reward": rewards}
    drawing = rate | {"draw_batch_size": 3 * BATCH["micro_batch_size"]} if rewards == "model" else rate
    if rewards == "live":
        groups["generation"] = {"base_url": "http://127.0.0.1:1/v1"}  # Nobody is asked.
    page = world.page(workplace, tiny_base, dpo=rate, grpo=groups, ppo=drawing)
    told = "\n".join(plan([str(page), "collect.written=1", "reflector.max_new_tokens=16", "--tokens=192", "--measure"]))
    off = dict(re.findall(r"^(\w+): .* GiB, the estimate is .* GiB \((.*)%\)\.$", told, re.MULTILINE))
    assert set(off) == set(KIND)
    assert all(abs(float(percent)) < 20 for percent in off.values()), off


def test_live_bytes_count_storages_once_until_they_end() -> None:
    known = torch.zeros(10)
    with nullcontext(), LiveBytes([known]) as live:
        assert live.now == 40
        made = torch.zeros(100)
        view = made[:50]
        assert live.now == 440
        del made
        assert live.now == 440
        del view
    assert (live.now, live.peak) == (40, 440)


def test_the_tokens_of_a_plan_are_those_that_training_counts_and_its_throughput_gives_the_time(
    workplace: Path, tiny_base: Path
) -> None:
    page = world.page(workplace, tiny_base)
    world.collect(page)
    experiment = world.experiment(workplace, tiny_base)
    told = "\n".join(plan([str(page)]))
    assert "not known: no measured throughput" in told
    main(["sft", str(page)])
    metrics = json.loads((workplace / "runs/tiny/sft/metrics.json").read_text())
    work = workload(experiment, "sft")
    assert (work.tokens, work.samples, work.steps) == (metrics["tokens"], metrics["samples"], metrics["steps"])
    speed = throughput(experiment, "sft", None)
    assert speed is not None
    assert speed.tokens_per_second == pytest.approx(metrics["tokens"] / metrics["seconds"])
    assert throughput(experiment, "sft", "tiny") == speed
    assert f"at {speed.tokens_per_second:.0f} tokens/s" in "\n".join(plan([str(page), "--like", "tiny"]))
    with pytest.raises(MissingInput, match="--like"):
        throughput(experiment, "sft", "nobody")


def test_a_plan_counts_the_texts_pairs_and_prompts_of_every_stage(workplace: Path, tiny_base: Path) -> None:
    grpo = {"learning_rate": 1e-3, "updates": 6} | BATCH
    page = world.page(workplace, tiny_base, dpo={"learning_rate": 1e-3, "epochs": 3} | BATCH, grpo=grpo)
    world.collect(page, tasks=12)
    experiment = load(page)
    tokenizer = load_tokenizer(experiment.train)
    prompts = [len(prompt_ids(tokenizer, world.prompt(f"collect task-{number}"))) for number in range(12)]
    good, bad = (len(response_ids(tokenizer, text)) for text in (world.GOOD, world.BAD))
    read = sum(2 * one + good + bad for one in prompts)
    longest = max(prompts) + max(good, bad)
    # 24 texts that were written by rule and 12 pairs, 4 a step; dpo reads the pairs three times.
    assert workload(experiment, "warm") == (24, read, longest, 6)
    assert workload(experiment, "reward") == (12, read, longest, 3)
    assert workload(experiment, "dpo") == (12, 3 * read, longest, 9)
    # Drawn responses have 8 tokens: 3 updates of 4, read twice, are each prompt twice; 6 updates are it twice as well.
    answered = sum(prompts) + 12 * 8
    assert workload(experiment, "ppo") == (12, 2 * answered, max(prompts) + 8, 6)
    assert workload(experiment, "grpo") == (12, 2 * answered, max(prompts) + 8, 6)
    live = load(page, ["train.grpo.reward=live"])
    assert workload(live, "grpo") == workload(experiment, "grpo")


def finished_stage(page: Path, stage: str, **metrics: Any) -> Path:
    """A stage's folder with the page of its run, as if it had taken 3 seconds for 600 tokens."""
    folder = Path("runs/tiny") / stage
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"tokens": 600, "seconds": 3.0} | metrics))
    (folder / "config.yaml").write_text(yaml.safe_dump(load(page).model_dump(mode="json")))
    return folder / "metrics.json"


def test_the_time_of_scored_groups_says_nothing_about_live_ones(workplace: Path, tiny_base: Path) -> None:
    page = world.page(workplace, tiny_base, grpo={"learning_rate": 1e-3} | BATCH)
    measured = finished_stage(page, "grpo")
    assert throughput(load(page), "grpo", None) == (200.0, measured)
    assert throughput(load(page, ["train.grpo.reward=live"]), "grpo", None) is None


def test_the_time_of_another_base_or_type_says_nothing(workplace: Path, tiny_base: Path) -> None:
    page = world.page(workplace, tiny_base)
    measured = finished_stage(page, "sft")
    for other in (f"train.base_model={LONGCHAT}", "train.dtype=bfloat16", "train.quantization=nf4"):
        assert throughput(load(page, ["run=other", other]), "sft", "tiny") is None
    assert throughput(load(page, ["run=other", "train.lora.rank=2"]), "sft", "tiny") == (200.0, measured)


@pytest.mark.parametrize("part", [{"tokens": 0}, {"resumed_from_update": 2}, {"resumed_from_step": 2}])
def test_a_stage_that_went_on_after_a_stop_is_no_measurement(
    workplace: Path, tiny_base: Path, part: dict[str, int]
) -> None:
    page = world.page(workplace, tiny_base)
    world.collect(page)
    finished_stage(page, "ppo", **part)
    assert throughput(load(page), "ppo", None) is None
    assert "not known: no measured throughput of this base in this type" in "\n".join(plan([str(page)]))


def test_a_plan_of_longchat_says_by_card_and_length_what_fits(
    workplace: Path, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = world.page(workplace, tiny_base, quantization="nf4", dtype="bfloat16")
    main(["plan", str(page), f"train.base_model={LONGCHAT}", "--card", "12", "--card", "80", "--tokens", "2048,65536"])
    told = capsys.readouterr().out
    assert "6.738 billion parameters" in told
    assert "not known before the tokenizer is here" in told
    lines = [line for line in told.splitlines() if line.startswith(("| 12 GiB", "| 80 GiB"))]
    assert [line.split()[1:5:3] for line in lines] == [["12", "2048"], ["12", "65536"], ["80", "2048"], ["80", "65536"]]
    assert "does not fit" not in lines[0]
    assert lines[1].count("does not fit") == 5
    assert "| card   | tokens | sft " in told


def test_a_length_without_room_for_a_prompt_is_refused(workplace: Path, tiny_base: Path) -> None:
    with pytest.raises(ConfigError, match="no room for a prompt"):
        list(plan([str(world.page(workplace, tiny_base)), "--tokens", "8"]))


def test_a_table_is_aligned() -> None:
    assert table(["a", "long"], [["word", "1"]]) == "| a    | long |\n| ---- | ---- |\n| word | 1    |"
