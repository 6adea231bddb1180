"""Bytes and slots of a shape against the same by hand."""

from typing import Any

import pytest

from configs import trial
from paxkv.reproduction.runners.pool_size import run


def tree_of(dtype="bfloat16", kv_bytes=10_000_000) -> dict[str, Any]:
    config = trial.get_config("opt_13b,a100_40,vllm_2023")
    config.cache.dtype = dtype
    config.model.update(num_layers=3, num_kv_heads=5, head_dim=8)
    config.hardware.kv_bytes = kv_bytes
    return config.to_dict()


@pytest.mark.parametrize(
    ("dtype", "num_bytes"), [("bfloat16", 2), ("float32", 4), ("int8", 1.5)]
)
def test_slots_are_whole_tokens_of_the_given_bytes(dtype, num_bytes):
    found = run(tree_of(dtype), "calibrated")
    # K and V of 3 layers with 5 heads of 8; int8 has a scale of 4 bytes for each 8 numbers
    assert found["bytes_per_token"] == 2 * 3 * 5 * 8 * num_bytes
    assert found["num_slots"] == 10_000_000 // found["bytes_per_token"]
    assert found["num_blocks"] == found["num_slots"] // 16
    assert found["weights_bytes"] == 2 * 12_853_473_280


def test_the_rule_leaves_what_weights_activations_and_workspace_do_not_take():
    found = run(tree_of(), "calibrated")
    activations = 2 * 2560 * 50_272  # the logits of a step; a layer takes less
    left = 0.95 * 40 * 2**30 - 2 * 12_853_473_280 - activations - 2**30
    assert found["memory_left_gib"] == pytest.approx(left / 2**30)


def test_without_bytes_there_are_no_slots():
    with pytest.raises(ValueError, match="kv_bytes"):
        run(tree_of(kv_bytes=None), "calibrated")
