import dataclasses

import pytest

from paxkv.simulation.chips import CHIPS, GIB
from paxkv.simulation.hardware import (
    HardwareConfig,
    activation_bytes,
    cache_share,
    efficiency_of,
    memory_for_kv,
    pool_blocks,
    published_chip,
)
from paxkv.simulation.profiles import A100_40_2023, Efficiency
from tests.priced import CONFIGS, hardware_of, shape_of

PRESETS = sorted(path.stem for path in (CONFIGS / "chips").glob("*.py"))


def blocks(hardware, model, **changes):
    limits = dict(block_size=16, kv_dtype="bfloat16", max_num_batched_tokens=2560)
    return pool_blocks(hardware, shape_of(model), **limits | changes)


def test_every_chip_has_a_preset():
    assert sorted((*CHIPS, "cpu")) == PRESETS
    for name in PRESETS:
        assert hardware_of(name).chip == name


def test_memory_left_by_the_rule_of_the_artifact():
    """0.95 of memory, less weights, activations and 1 GiB (EVAL §1.1)."""
    shape = shape_of("opt_13b")
    logits = 2 * 2560 * 50272  # more than 2 x (2560 x 20480 + 2560 x 5120)
    assert activation_bytes(shape, 2560, 1) == logits
    left = int(0.95 * 40 * GIB) - 2 * 12_853_473_280 - logits - GIB
    assert memory_for_kv(hardware_of("a100_40"), shape, 2560) == left
    assert blocks(hardware_of("a100_40"), "opt_13b") == (left // (16 * 819_200),)


def test_kv_bytes_of_the_paper_give_its_blocks():
    assert blocks(hardware_of("a100_40", kv_bytes=12 * GIB), "opt_13b") == (983,)


@pytest.mark.parametrize(
    "model, chip, num_chips, kv_gib",
    [("opt_66b", "a100_40", 4, 21), ("opt_175b", "a100_80", 8, 264)],
)
def test_tensor_parallel_pools_of_the_paper(model, chip, num_chips, kv_gib):
    """Table 1 of arXiv 2309.06180; its memory is a little less than nominal."""
    (count,) = blocks(hardware_of(chip, num_chips=num_chips), model)
    (per_token,) = shape_of(model).kv_bytes_per_token("bfloat16")
    found = count * 16 * per_token / GIB
    assert kv_gib <= found <= 1.25 * kv_gib


def test_chips_split_heads_but_not_latents():
    assert cache_share(shape_of("llama3_8b"), 4) == 1 / 4
    assert cache_share(shape_of("llama3_8b"), 16) == 1 / 8  # 8 heads, each on two chips
    assert cache_share(shape_of("deepseek_v3"), 8) == 1


def test_weights_that_do_not_fit_name_the_remedy():
    with pytest.raises(ValueError) as caught:
        blocks(hardware_of("a100_40"), "llama3_70b")
    message = str(caught.value)
    assert "131.4 GiB per chip" in message and "38.0 GiB" in message
    assert "num_chips ≥ 4" in message and "weights_dtype='int8'" in message
    assert blocks(hardware_of("a100_40", num_chips=4), "llama3_70b")[0] > 2


def test_a_pool_of_less_than_two_blocks_is_refused():
    with pytest.raises(ValueError, match="holds 1 blocks of 13,107,200 bytes; need ≥ 2"):
        blocks(hardware_of("a100_40", kv_bytes=20_000_000), "opt_13b")


def test_windowed_groups_take_what_they_can_use():
    hardware = hardware_of("h100")
    even = blocks(hardware, "gemma3_27b")
    assert 0 <= even[0] - even[1] < 6  # a block of the first takes a fifth as much
    limits = dict(max_num_seqs=4, max_context=32768, max_num_batched_tokens=512)
    first, windowed = blocks(hardware, "gemma3_27b", **limits)
    assert windowed == 4 * ((1024 + 512) // 16 + 1) + 1
    budget = memory_for_kv(hardware, shape_of("gemma3_27b"), 512)
    held = 16 * (first * 10 * 8192 + windowed * 52 * 8192)
    assert budget - 16 * 10 * 8192 < held <= budget


def test_cpu_has_no_figures():
    with pytest.raises(ValueError, match="chip='cpu' has no published figures"):
        published_chip(hardware_of("cpu"))
    with pytest.raises(ValueError, match="use num_chips=1"):
        hardware_of("cpu", num_chips=2)


def test_config_replaces_calibrated_numbers_and_no_ideal_ones():
    hardware = hardware_of("a100_40", product=0.7, host_s_per_step=1e-3)
    changed = efficiency_of(hardware, "calibrated")
    assert (changed.product, changed.host_s_per_step) == (0.7, 1e-3)
    assert changed.source.endswith("set in the config: product, host_s_per_step")
    expected = dataclasses.replace(
        A100_40_2023, product=0.7, host_s_per_step=1e-3, source=changed.source
    )
    assert changed == expected
    assert efficiency_of(hardware, "ideal").product == 1


def test_links_can_be_replaced():
    hardware = hardware_of("h100", link_bytes_per_s=1e9, host_link_bytes_per_s=2e9)
    chip = published_chip(hardware)
    assert (chip.link_bytes_per_s, chip.host_link_bytes_per_s) == (1e9, 2e9)
    assert efficiency_of(hardware, "calibrated").swap_out_bytes_per_s == 0.8 * 2e9


def test_overrides_are_fields_of_efficiency():
    own = {field.name for field in dataclasses.fields(HardwareConfig)}
    shared = own & {field.name for field in dataclasses.fields(Efficiency)}
    assert len(shared) == 9


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"chip": "a100"}, "chip='a100' is not offered; use one of a100_40"),
        ({"num_chips": 0}, "num_chips=0 must be >= 1"),
        ({"memory_fraction": 1.5}, r"memory_fraction=1.5 must be in \(0, 1\]"),
        ({"product": 0.0}, "product=0.0 must be in"),
        ({"host_s_per_seq": -1.0}, "host_s_per_seq=-1.0 must be ≥ 0"),
        ({"attention_kernel": "fast"}, "attention_kernel='fast' is not offered"),
        ({"calibration": ""}, "calibration='' is no path"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s=0.0 must be above 0"),
    ],
)
def test_wrong_hardware_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        hardware_of("a100_40", **changes)
