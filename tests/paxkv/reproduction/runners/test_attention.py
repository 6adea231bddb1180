"""Attention over blocks and over a contiguous cache: the same numbers, in float32 only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxkv.reproduction.runners.attention import run


@pytest.mark.parametrize(("dtype", "is_exact"), [("float32", True), ("bfloat16", False)])
def test_the_contiguous_caches_hold_what_the_blocks_hold(dtype, is_exact, monkeypatch):
    def normal(key, shape):  # jax's own takes seconds to compile
        del key
        return jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))

    monkeypatch.setattr(jax.random, "normal", normal)
    found = run(
        {
            "model": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16},
            "engine": {"implementation": "xla"},  # quicker to compile
            "cache": {"block_size": 8, "dtype": dtype},
            "attention": {"batch": 3, "context": 20, "rounds": 1},  # no whole blocks
        },
        "calibrated",
    )
    assert (found["largest_error"] <= 1e-5) == is_exact
    assert "CPU" in found["device"]
    for name, percent in found["overhead_percent"].items():
        ratio = found["median_ms"]["paged"] / found["median_ms"][name]
        assert percent == pytest.approx(100 * (ratio - 1))
