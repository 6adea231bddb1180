"""Bad arguments are named while tracing, with both values.

The shape checks are called directly: through the ops, the shape annotations that tests
enforce would speak first.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.checks import require_layer
from pallas_kernels.paged_attention import (
    IMPLEMENTATIONS,
    Tiling,
    paged_attention,
    ragged_paged_attention,
)
from pallas_kernels.paged_attention.api import check_head_dim, check_inputs, check_ragged
from pallas_kernels.paged_attention.cases import Case, make_inputs

CASE = Case(
    name="errors", num_heads=4, kv_heads=2, head_dim=8, block_size=4, context_lens=(5, 9)
)


def i32(*shape):
    return jnp.zeros(shape, jnp.int32)


@pytest.fixture(scope="module")
def good():
    inputs = make_inputs(CASE, platform="cpu")
    return dict(
        q=inputs.q,
        cache=inputs.cache,
        block_tables=inputs.block_tables,
        context_lens=inputs.context_lens,
        window=None,
        soft_cap=None,
        sinks=None,
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(q=jnp.zeros((2, 4, 8), jnp.int8)), "q has dtype int8.*float32"),
        (dict(q=jnp.zeros((2, 3, 8))), r"\(2, 3, 8\).*multiple of the pool's kv_heads=2"),
        (dict(block_tables=i32(2, 0)), r"block_tables of shape \(2, 0\).*P ≥ 1"),
        (dict(context_lens=i32(3)), r"context_lens of shape \(3,\).*block_tables \(2, 3\)"),
        (dict(block_tables=jnp.zeros((2, 3))), "block_tables has dtype float32.*int32"),
        (
            dict(context_lens=jnp.zeros(2, jnp.int16)),
            "context_lens has dtype int16.*int32",
        ),
        (dict(window=0), "window=0 must be an integer of at least 1"),
        (dict(window=-3), "window=-3 must be an integer of at least 1"),
        (dict(window=2.0), "window is a float, must be an array"),
        (dict(window=2**31), "window=2147483648 must be .* below 2"),
        (dict(window=np.int64(2**32 + 2)), "window=4294967298 must be .* below 2"),
        (dict(window=True), "window=True must be an integer"),
        (dict(window=i32(2)), r"window of shape \(2,\) must be a scalar"),
        (dict(soft_cap=0.0), "soft_cap=0.0 must be a positive number"),
        (dict(soft_cap=float("nan")), "soft_cap=nan must be a positive number"),
        (dict(soft_cap=float("inf")), "soft_cap=inf must be a positive number"),
        (dict(sinks=jnp.zeros(3)), r"sinks of shape \(3,\).*q has 4"),
    ],
)
def test_bad_inputs(good, bad, message):
    check_inputs(**good)
    with pytest.raises(ValueError, match=message):
        check_inputs(**good | bad)


def test_bad_ragged_inputs():
    check_ragged(i32(2), i32(3), i32(1))
    with pytest.raises(ValueError, match=r"query_starts of shape \(2,\).*\(2,\)"):
        check_ragged(i32(2), i32(2), i32(1))
    with pytest.raises(ValueError, match=r"num_seqs of shape \(2,\) must be \[1\]"):
        check_ragged(i32(2), i32(3), i32(2))
    with pytest.raises(ValueError, match="query_starts has dtype float32"):
        check_ragged(i32(2), jnp.zeros(3), i32(1))


@pytest.mark.parametrize("name", ["auto", "XLA"])
def test_other_implementations_are_not_offered(name):
    arguments = make_inputs(CASE, platform="cpu").arguments()
    message = rf"implementation='{name}' .* choose from \['cpu', 'gpu', 'gpu_triton'"
    with pytest.raises(ValueError, match=message):
        paged_attention(*arguments, scale=1.0, implementation=name)
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*arguments, i32(3), i32(1), scale=1.0, implementation=name)
    assert name not in IMPLEMENTATIONS


@pytest.mark.parametrize("name", ["tpu", "gpu", "gpu_triton"])
def test_a_pool_is_laid_out_for_one_platform(name):
    arguments = make_inputs(CASE, platform="cpu").arguments()
    with pytest.raises(ValueError, match=rf"'{name}' of paged_attention .* for 'cpu'"):
        paged_attention(*arguments, scale=1.0, implementation=name)


def test_options_that_only_some_take():
    arguments = make_inputs(CASE, platform="tpu").arguments()
    with pytest.raises(ValueError, match="chunk_size=0 must be an integer of at least 1"):
        paged_attention(*arguments, scale=1.0, implementation="xla", chunk_size=0)
    with pytest.raises(ValueError, match="'tpu' takes no chunk_size, got 8; use one of"):
        paged_attention(*arguments, scale=1.0, implementation="tpu", chunk_size=8)
    rest = dict(scale=1.0, expand=lambda rows: (rows, rows))
    with pytest.raises(ValueError, match="expand needs a latent pool.*interleaved"):
        ragged_paged_attention(*arguments, i32(3), i32(1), **rest, implementation="xla")
    latent = dataclasses.replace(CASE, kv_heads=1, value_dim=4)
    arguments = make_inputs(latent, platform="tpu").arguments()
    with pytest.raises(ValueError, match="'tpu' takes no expand; use one of"):
        ragged_paged_attention(*arguments, i32(3), i32(1), **rest, implementation="tpu")


def test_queries_have_the_head_size_of_the_pool(good):
    with pytest.raises(ValueError, match=r"\(2, 4, 16\) must be \[queries, H, 8\]"):
        check_head_dim(jnp.zeros((2, 4, 16)), good["cache"])


@pytest.mark.parametrize("layer", [2, -1, 1.5, jnp.float32(0), jnp.zeros(1, jnp.int32)])
def test_a_layer_is_one_of_the_pool_s(good, layer):
    require_layer(1, good["cache"])
    require_layer(jnp.int32(7), good["cache"])
    with pytest.raises(ValueError, match=r"layer=.* must be "):
        require_layer(layer, good["cache"])


@pytest.mark.parametrize("implementation", ["reference", "xla", "cpu"])
def test_nothing_to_attend(implementation):
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    q, cache, layer, tables, lens = make_inputs(CASE, platform="cpu").arguments()
    options = dict(scale=1.0, implementation=implementation, return_lse=True)
    out, _ = paged_attention(q[:0], cache, layer, tables[:0], lens[:0], **options)
    assert out.shape == (0, 4, 8)
    for queries, rows in ((0, 2), (3, 0)):
        x = jnp.zeros((queries, 4, 8), jnp.bfloat16)
        rest = (tables[:rows], lens[:rows], i32(rows + 1), i32(1))
        out, lse = ragged_paged_attention(x, cache, layer, *rest, **options)
        assert out.shape == (queries, 4, 8) and out.dtype == jnp.bfloat16
        assert not out.any() and jnp.isneginf(lse).all()


def test_decode_takes_one_query_per_sequence():
    inputs = make_inputs(CASE, platform="cpu")
    arguments = inputs._replace(q=jnp.zeros((3, 4, 8))).arguments()
    with pytest.raises((ValueError, TypeError)):  # TypeError: of the annotations
        paged_attention(*arguments, scale=1.0, implementation="xla")


@pytest.mark.parametrize(
    ("implementation", "platform", "taken"),
    [
        ("reference", "cpu", "no tiling"),
        ("cpu", "cpu", "no tiling"),
        ("gpu", "gpu", "GpuTiling"),
        ("gpu_triton", "gpu", "TritonTiling"),
    ],
)
def test_each_implementation_has_tiles_of_its_own(implementation, platform, taken):
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    arguments = make_inputs(CASE, platform=platform).arguments()
    tiling = Tiling(blocks_per_chunk=1, queries_per_tile=1)
    message = f"'{implementation}' takes {taken}, got tiling=Tiling"
    with pytest.raises(ValueError, match=message):
        paged_attention(*arguments, scale=1.0, implementation=implementation, tiling=tiling)


def test_a_decode_tile_has_one_query():
    arguments = make_inputs(CASE, platform="cpu").arguments()
    tiling = Tiling(blocks_per_chunk=1, queries_per_tile=64)
    with pytest.raises(ValueError, match="queries_per_tile=64 must be 1"):
        paged_attention(*arguments, scale=1.0, implementation="xla", tiling=tiling)


def test_a_tiling_has_tiles():
    with pytest.raises(ValueError, match="blocks_per_chunk=0"):
        Tiling(blocks_per_chunk=0, queries_per_tile=1)
