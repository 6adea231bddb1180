"""Logits through a pool: exact in float32, and near them in smaller formats."""

import numpy as np
import pytest

from paxkv.prompt_logits import prompt_logits
from tests.dense import dense_logits
from tests.harness import SMALLEST_GAP
from tests.tiny_model import tiny_decoder

PROMPT = tuple(np.random.default_rng(0).integers(0, 60, 90).tolist())


def logits_of(kv_dtype: str, block_size: int = 7) -> np.ndarray:
    return prompt_logits(
        tiny_decoder(),
        PROMPT,
        kv_dtype=kv_dtype,
        block_size=block_size,
        implementation="xla",
        platform="cpu",
    )


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    return logits_of("float32")


def test_float32_is_dense_attention(exact):
    dense = dense_logits(tiny_decoder(), PROMPT)
    np.testing.assert_allclose(exact, dense, atol=SMALLEST_GAP / 2)  # no token changes


@pytest.mark.parametrize(
    ("kv_dtype", "half_step"),  # of a number, of a row's largest, of a number
    [("bfloat16", 2**-9), ("int8", 1 / 254), ("float8_e4m3fn", 2**-4)],
)
def test_smaller_formats_cost_their_rounding(exact, kv_dtype, half_step):
    """Each of the tiny model's logits moves by a few roundings of its K and V."""
    error = np.abs(logits_of(kv_dtype) - exact).mean() / exact.std()
    assert half_step / 8 < error < half_step * 8


def test_block_size_changes_no_logit(exact):
    np.testing.assert_allclose(logits_of("float32", 16), exact, atol=SMALLEST_GAP / 2)
