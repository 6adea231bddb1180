import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.results import CHECKOUT
from paxkv.simulation.chips import CHIPS
from paxkv.simulation.cost_model import RooflineModel, kernel_share
from paxkv.simulation.work import CostModel, StepWork
from tests.priced import decodes, hardware_of, moves, prefill, shape_of


def roofline(
    chip="a100_40", model="opt_13b", profile="calibrated", block_size=16, **hardware
):
    return RooflineModel(
        hardware_of(chip, **hardware),
        shape_of(model),
        block_size=block_size,
        kv_dtype="bfloat16",
        profile=profile,
    )


def test_decode_is_one_pass_over_weights_and_the_blocks_of_the_cache():
    found = roofline().seconds(decodes(10, 500))
    weights_s = 2 * 12_853_473_280 / (1555e9 * 0.85)
    read_s = 10 * 512 * 819_200 / (1555e9 * 0.60)  # 32 blocks of 16
    assert found.decode_s == pytest.approx(weights_s + read_s)
    assert found.host_s == pytest.approx(7e-3 + 10 * 0.22e-3)
    assert found.total_s == pytest.approx(found.decode_s + found.host_s)


def test_large_batches_are_bound_by_products():
    found = roofline(profile="ideal").seconds(decodes(512, 0))
    assert found.total_s == pytest.approx(2 * 12_853_473_280 * 512 / 312e12)


def test_prefill_alone():
    found = roofline().seconds(prefill(1000))
    linear_s = 2 * 12_853_473_280 * 1000 / (312e12 * 0.55)
    # 4 x layers x heads x head size of each pair
    attention_s = 4 * 40 * 40 * 128 * (1000 * 1001 / 2) / (312e12 * 0.55)
    assert found.prefill_s == pytest.approx(linear_s + attention_s)
    assert found.decode_s == 0


def test_prefill_has_what_it_adds_to_the_decodes():
    cost = roofline()
    alone, both = cost.seconds(decodes(10, 500)), cost.seconds(prefill(1000, 10, 500))
    assert both.decode_s == alone.decode_s
    weights_s = 2 * 12_853_473_280 / (1555e9 * 0.85)
    linear_s = 2 * 12_853_473_280 * 1010 / (312e12 * 0.55)
    attention_s = 4 * 40 * 40 * 128 * (1000 * 1001 / 2) / (312e12 * 0.55)
    assert both.prefill_s == pytest.approx(linear_s - weights_s + attention_s)


def test_a_small_chunk_of_a_long_context_is_bound_by_its_reads():
    cost = roofline("h100", "llama3_8b", "ideal")
    work = dataclasses.replace(
        prefill(1), prefill_pairs=(100_000,), prefill_context_tokens=(100_000,)
    )
    extra = cost.seconds(work).prefill_s - cost.seconds(prefill(1)).prefill_s
    assert extra == pytest.approx(131_072 * 99_999 / 3350e9)


def test_windowed_groups_add_up():
    shape = shape_of("gemma3_27b")
    cost = roofline("h100", "gemma3_27b", "ideal")
    work = dataclasses.replace(
        decodes(1, 0),
        decode_context_tokens=(8000, 1024),
        decode_read_tokens=(8000, 1040),
        prefill_pairs=(0, 0),
        prefill_context_tokens=(0, 0),
    )
    full, windowed = shape.kv_bytes_per_token("bfloat16")
    weights_s = shape.weights_bytes / 3350e9
    expected = weights_s + (8000 * full + 1040 * windowed) / 3350e9
    assert cost.seconds(work).total_s == pytest.approx(expected)


def test_latent_decodes_are_bound_by_products():
    """128 heads meet each latent: 2 x 128 x (576 + 512) flops for 1,152 bytes."""
    cost = roofline("h100", "deepseek_v3", "ideal", num_chips=16)
    many, none = (cost.seconds(decodes(64, context)) for context in (4096, 0))
    # latents are not split, so that each chip reads all of them, for its own heads
    read_s = 64 * 4096 * 61 * 1152 / 3350e9
    flops_s = 64 * 4096 * 61 * 2 * 128 * (576 + 512) / (16 * 989e12)
    assert read_s > flops_s
    assert many.decode_s - none.decode_s == pytest.approx(read_s)
    one_chip = roofline("h100", "deepseek_v3", "ideal")
    extra = one_chip.seconds(decodes(64, 4096)).decode_s
    extra -= one_chip.seconds(decodes(64, 0)).decode_s
    assert extra == pytest.approx(max(read_s, 16 * flops_s))


def test_more_tokens_meet_more_experts():
    shape = shape_of("deepseek_v3")
    cost = roofline("h200", "deepseek_v3", "ideal", num_chips=8)
    dense = shape.num_parameters - shape.expert_parameters
    rate = 8 * 4800e9
    for count in (1, 8, 64):
        share = 1 - (1 - 8 / 256) ** count
        expected = (dense + shape.expert_parameters * share) / rate
        assert cost.seconds(decodes(count, 0)).decode_s == pytest.approx(expected)


def test_smaller_weights_are_read_faster():
    def decode_s(dtype):
        cost = RooflineModel(
            hardware_of("h100"),
            shape_of("llama3_8b", weights_dtype=dtype),
            block_size=16,
            kv_dtype="bfloat16",
            profile="ideal",
        )
        return cost.seconds(decodes(1, 0)).decode_s, cost.seconds(prefill(10_000)).prefill_s

    assert decode_s("int8")[0] == pytest.approx(decode_s("bfloat16")[0] / 2)
    assert decode_s("int8")[1] < 0.6 * decode_s("bfloat16")[1]


def test_tensor_parallel_halves_the_work_and_adds_collectives():
    one, two = roofline(profile="ideal"), roofline(profile="ideal", num_chips=2)
    work = prefill(1000, 10, 500)
    alone, split = one.seconds(work), two.seconds(work)
    assert split.decode_s == pytest.approx(alone.decode_s / 2)
    assert split.prefill_s == pytest.approx(alone.prefill_s / 2)
    assert alone.communication_s == 0
    # two all-reduces a layer of 2 x (n - 1) / n x tokens x hidden x 2 bytes
    sent = 80 * 2 * (1 / 2) * 1010 * 5120 * 2
    assert split.communication_s == pytest.approx(sent / 300e9)
    slow = roofline(num_chips=2).seconds(work).communication_s
    assert slow == pytest.approx(80 * 20e-6 + sent / (300e9 * 0.8))


# arXiv 2309.06180, Figure 19a, ms for 256 tokens of OPT-13B, read from the vector figure
SWAP_IN_MS = [
    81.973,
    53.6277,
    35.1371,
    26.0456,
    21.6062,
    19.2808,
    18.2383,
    17.5742,
    17.3002,
]
SWAP_OUT_MS = [
    55.4716,
    35.6447,
    25.9048,
    21.0524,
    18.5412,
    17.2788,
    16.6722,
    16.3003,
    16.1067,
]


@pytest.mark.parametrize("power", range(9))
def test_swap_curve_of_the_paper(power):
    cost = roofline(block_size=2**power)
    count = 256 // 2**power
    swap_in = cost.seconds(moves(num_swapped_in_blocks=count)).swap_s
    swap_out = cost.seconds(moves(num_swapped_out_blocks=count)).swap_s
    assert 1e3 * swap_in == pytest.approx(SWAP_IN_MS[power], rel=0.10)
    assert 1e3 * swap_out == pytest.approx(SWAP_OUT_MS[power], rel=0.02)


def test_copies_read_and_write_within_the_pool():
    block_bytes = 16 * 819_200
    one = roofline().seconds(moves(num_copied_blocks=1)).copy_s
    five = roofline().seconds(moves(num_copied_blocks=5)).copy_s
    assert one == pytest.approx(2 * block_bytes / 1555e9 + 50e-6)
    assert five - one == pytest.approx(4 * 2 * block_bytes / 1555e9)


def test_disk_is_slower_than_the_host():
    loaded = roofline().seconds(moves(num_loaded_blocks=3)).swap_s
    swapped = roofline().seconds(moves(num_swapped_in_blocks=3)).swap_s
    assert loaded == pytest.approx(swapped + 3 * 16 * 819_200 / 2e9)


def test_small_blocks_slow_the_kernel_of_2023():
    assert [kernel_share("vllm_2023", n) for n in (1, 2, 4, 8, 16, 256)] == [
        0.40,
        0.45,
        0.45,
        0.85,
        1.0,
        1.0,
    ]
    assert kernel_share("vllm_2023", 7) == 0.45
    reads = [
        roofline(block_size=n).seconds(decodes(1, 4096, n)).decode_s
        - roofline(block_size=n).seconds(decodes(1, 0, n)).decode_s
        for n in (1, 16)
    ]
    assert reads[0] == pytest.approx(reads[1] / 0.40)


# decodes, their context, prompt tokens, blocks of each kind of move; plain numbers, since
# the type checks of tests draw random ones when a step is made
SIZES = st.tuples(
    st.integers(0, 300), *[st.integers(0, 5000)] * 2, *[st.integers(0, 50)] * 4
)


def any_work(sizes: tuple[int, ...]) -> StepWork:
    count, context, new, copied, swapped_in, swapped_out, loaded = sizes
    return dataclasses.replace(
        prefill(new, count, context) if new else decodes(count, context),
        num_copied_blocks=copied,
        num_swapped_in_blocks=swapped_in,
        num_swapped_out_blocks=swapped_out,
        num_loaded_blocks=loaded,
    )


PAIRS = [
    (roofline(chip, model, "ideal"), roofline(chip, model, "calibrated"))
    for chip in CHIPS
    for model in ("opt_13b", "deepseek_v3")
]


@given(sizes=SIZES, pair=st.sampled_from(PAIRS))
def test_no_device_is_faster_than_ideal(sizes, pair):
    work = any_work(sizes)
    ideal, calibrated = (cost.seconds(work) for cost in pair)
    for field in dataclasses.fields(ideal):
        slow, fast = getattr(calibrated, field.name), getattr(ideal, field.name)
        assert fast >= 0
        if field.name != "prefill_s":  # decodes may bear more of one pass over the weights
            assert slow >= fast * (1 - 1e-12)
    assert calibrated.total_s >= ideal.total_s * (1 - 1e-12)


GROWING = [field.name for field in dataclasses.fields(StepWork)]


@given(sizes=SIZES, pair=st.sampled_from(PAIRS), name=st.sampled_from(GROWING))
def test_more_work_never_takes_less(sizes, pair, name):
    work = any_work(sizes)
    before = getattr(work, name)
    after = before + 7 if isinstance(before, int) else tuple(count + 7 for count in before)
    more = dataclasses.replace(work, **{name: after})
    for cost in pair:
        assert cost.seconds(more).total_s >= cost.seconds(work).total_s * (1 - 1e-12)


TIMED = """
import time
from tests.priced import hardware_of, prefill, shape_of
from paxkv.simulation.cost_model import RooflineModel

cost = RooflineModel(
    hardware_of("a100_40"),
    shape_of("opt_13b"),
    block_size=16,
    kv_dtype="bfloat16",
    profile="calibrated",
)
work = prefill(300, 30, 500)
best = float("inf")
for _ in range(50):
    started = time.perf_counter()
    for _ in range(100):
        cost.seconds(work)
    best = min(best, (time.perf_counter() - started) / 100)
print(best)
"""


def test_costs_little_itself():
    """In a process of its own, without the type checks of tests."""
    assert isinstance(roofline(), CostModel)
    done = subprocess.run(
        [sys.executable, "-c", TIMED],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 8e-6  # 2.4 µs where nobody else computes


def test_block_size_is_checked():
    with pytest.raises(ValueError, match="block_size=0 must be >= 1"):
        roofline(block_size=0)
