"""The Triton kernel, interpreted, against the reference on the same hostile inputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention.cases import DECODE_CASES, RAGGED_CASES, make_inputs
from pallas_kernels.paged_attention.gpu_triton import (
    kernel,
    paged_attention_gpu_triton,
    ragged_paged_attention_gpu_triton,
)
from pallas_kernels.paged_attention.gpu_triton.tiling import TritonTiling, triton_tiling
from pallas_kernels.paged_attention.merging import merge_parts
from pallas_kernels.paged_attention.reference import (
    paged_attention_reference,
    ragged_paged_attention_reference,
)

TOLERANCE = 2e-5  # float32: sums of up to 600 products of normal numbers
DECODE = {case.name: case for case in DECODE_CASES}
RAGGED = {case.name: case for case in RAGGED_CASES}
TILES = dict(rows_per_tile=16, tokens_per_chunk=32, num_splits=1, num_warps=4, num_stages=2)


def attend(case, inputs, *, tiling=None, **changed):
    """Output and lse of the rows of queries. Padded rows must be finite."""
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_gpu_triton if is_ragged else paged_attention_gpu_triton
    static = dict(tiling=tiling, device_kind=None, interpret=True)
    run = functools.partial(op, **case.options(), **static)
    out, lse = jax.jit(run)(*inputs.arguments(), **changed)
    assert np.isfinite(out.astype(jnp.float32)).all()
    assert not np.isnan(lse).any()
    return _rows(case, out, lse)


def expected(case, inputs):
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_reference if is_ragged else paged_attention_reference
    run = functools.partial(op, **case.options())
    return _rows(case, *jax.jit(run)(*inputs.arguments()))


def _rows(case, out, lse):
    count = sum(case.query_lens) if case.query_lens else len(case.context_lens)
    return np.asarray(out[:count], np.float32), np.asarray(lse[:count])


def assert_equal(actual, wanted, tolerance=TOLERANCE):
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=f"decode-{name}") for name, case in DECODE.items()),
        pytest.param(RAGGED["mha_b1"], id="ragged-b1"),
        pytest.param(RAGGED["k3_b3"], id="ragged-b3"),
        pytest.param(RAGGED["everything_b16"], id="ragged-everything"),
        pytest.param(RAGGED["mla_b16"], id="ragged-latent"),
    ],
)
def test_is_the_reference(case):
    inputs = make_inputs(case, platform="gpu")
    assert_equal(attend(case, inputs), expected(case, inputs))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(DECODE["everything_b16"], "int8", id="decode-int8"),
        pytest.param(DECODE["k3_b3"], "float8_e4m3fn", id="decode-fp8"),
        pytest.param(RAGGED["k3_b3"], "int8", id="ragged-int8"),
        pytest.param(DECODE["mla_b16"], "float8_e4m3fn", id="latent-fp8"),
        pytest.param(RAGGED["window_b8"], "bfloat16", id="ragged-bf16"),
    ],
)
def test_narrow_pools_lose_nothing(case, dtype):
    """Both read the same stored numbers, so the float32 tolerance holds."""
    inputs = make_inputs(case, dtype=dtype, platform="gpu")
    assert_equal(attend(case, inputs), expected(case, inputs))


def test_bfloat16_queries():
    """Products of bfloat16: weights are rounded to 8 bits before they meet V."""
    case = RAGGED["everything_b16"]
    inputs = make_inputs(case, dtype="bfloat16", platform="gpu")
    inputs = inputs._replace(q=inputs.q.astype(jnp.bfloat16))
    wanted = expected(case, inputs._replace(q=inputs.q.astype(jnp.float32)))
    assert_equal(attend(case, inputs), wanted, 2e-2)


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_splits_and_tiles_change_nothing(cases):
    """More splits than some tiles have chunks, and a sink that only one may count."""
    case = cases["everything_b16"]
    inputs = make_inputs(case, platform="gpu")
    tiling = TritonTiling(**TILES | dict(rows_per_tile=32, num_splits=4))
    assert_equal(attend(case, inputs, tiling=tiling), expected(case, inputs))


def test_more_heads_in_a_group_than_rows_in_a_tile():
    case = dataclasses.replace(DECODE["mqa_b2"], num_heads=40)
    inputs = make_inputs(case, platform="gpu")
    tiling = TritonTiling(**TILES)
    assert_equal(attend(case, inputs, tiling=tiling), expected(case, inputs))


def test_traced_window():
    case = DECODE["window_b8"]
    inputs = make_inputs(case, platform="gpu")
    unbounded = dataclasses.replace(case, window=None)
    local = attend(case, inputs, window=jnp.int32(case.window))
    assert_equal(local, expected(case, inputs))
    everything = attend(case, inputs, window=jnp.int32(0))
    assert_equal(everything, expected(unbounded, inputs))


def test_entries_before_the_window_are_not_read():
    case = DECODE["window_b8"]
    inputs = make_inputs(case, platform="gpu")
    before = np.maximum(np.asarray(case.context_lens) - case.window, 0) // case.block_size
    entry = np.arange(inputs.block_tables.shape[1])
    tables = jnp.where(entry < before[:, None], -7, inputs.block_tables)
    freed = attend(case, inputs._replace(block_tables=tables))
    assert_equal(freed, expected(case, inputs))


def test_the_tables_are_looked_up(monkeypatch):
    """Were they not, the cases above would show it: blocks are permuted."""
    case = dataclasses.replace(DECODE["k3_b3"], context_lens=(20, 40))
    inputs = make_inputs(case, platform="gpu")
    wanted, _ = expected(case, inputs)
    kv = jnp.nan_to_num(inputs.cache.kv, nan=0.5)
    inputs = inputs._replace(cache=dataclasses.replace(inputs.cache, kv=kv))
    last = inputs.cache.num_blocks - 1

    def look_up(refs, rows, entry, is_read):
        return jnp.where(is_read, jnp.minimum(entry, last), 0)

    monkeypatch.setattr(kernel, "_look_up", look_up)
    actual, _ = attend(case, inputs)
    assert np.abs(actual - wanted).max(axis=(1, 2)).min() > 1000 * TOLERANCE


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_a_nan_of_its_own_context_is_not_hidden(cases, num_splits):
    """NaN that belongs to no context must not leak, but a diverged model must show."""
    case = cases["k3_b3"]
    inputs = make_inputs(case, platform="gpu")
    last = (sum(case.query_lens) if case.query_lens else len(case.context_lens)) - 1
    inputs = inputs._replace(q=inputs.q.at[last].set(jnp.nan))
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_gpu_triton if is_ragged else paged_attention_gpu_triton
    tiling = TritonTiling(**TILES | dict(num_splits=num_splits))
    static = dict(tiling=tiling, device_kind=None, interpret=True)
    run = jax.jit(functools.partial(op, **case.options(), **static))
    out, lse = run(*inputs.arguments())
    for x in (np.isnan(out).all(axis=2), np.isnan(lse)):
        assert x[last].all()
        assert x.sum() == case.num_heads


def test_merge_of_nothing_is_empty():
    out, lse = merge_parts(jnp.zeros((3, 1, 2, 4)), jnp.full((3, 1, 2), -jnp.inf))
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(lse, -np.inf)


def test_tilings():
    """Keys are split only where sequences are too few for the chip."""
    shape = dict(max_queries=1, group=4, kv_heads=8, head_dim=128, products="bfloat16")
    few = triton_tiling(num_seqs=1, max_context=2**17, device_kind=None, **shape)
    many = triton_tiling(num_seqs=256, max_context=2**17, device_kind=None, **shape)
    short = triton_tiling(num_seqs=1, max_context=256, device_kind=None, **shape)
    larger = triton_tiling(
        num_seqs=1, max_context=2**17, device_kind="NVIDIA H100 80GB HBM3", **shape
    )
    assert few.num_splits > 1
    assert many.num_splits == short.num_splits == 1
    assert larger.num_splits > few.num_splits
    with pytest.raises(ValueError, match="tokens_per_chunk=24 must be a power of two"):
        TritonTiling(**TILES | dict(tokens_per_chunk=24))
    with pytest.raises(ValueError, match="num_splits=0 must be at least 1"):
        TritonTiling(**TILES | dict(num_splits=0))


def _trace(*, head_dim=64, value_dim=None, block_size=16, num_blocks=4, **options):
    """Shapes only: nothing as large as the pool is made."""
    layout = kv_layout(1, head_dim, options.pop("dtype", "bfloat16"), "gpu", value_dim)
    sizes = dict(num_layers=1, num_blocks=num_blocks, block_size=block_size)
    cache = jax.eval_shape(lambda: make_cache(layout, **sizes))
    run = functools.partial(
        paged_attention_gpu_triton,
        **dict(scale=1.0, window=None, soft_cap=None, sinks=None),
        **dict(tiling=None, device_kind=None) | options,
        interpret=True,
    )

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    q = jax.ShapeDtypeStruct((2, 4, head_dim), jnp.bfloat16)
    return jax.eval_shape(run, q, cache, ints(), ints(2, 3), ints(2))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (dict(block_size=257), r"block_size=257 .* at most 256; use smaller blocks"),
        (dict(head_dim=264), r"head_dim=264 .* at most 256.*use implementation='xla'"),
        (dict(head_dim=700, value_dim=520), r"value_dim=520 with 180 .* \(512, 128\)"),
        (
            dict(dtype="int8", num_blocks=2**21, block_size=16),
            r"pool of 4294967296 numbers in 4294967296 bytes .* 32-bit offsets",
        ),
    ],
    ids=["block-size", "head-dim", "latent", "offsets"],
)
def test_errors(shape, message):
    _trace()
    with pytest.raises(ValueError, match=message):
        _trace(**shape)


def test_large_pools_are_taken():
    """Beyond 2**32 bytes offsets have 64 bits."""
    _trace(dtype="int8", num_blocks=2**21 + 1)
    _trace(num_blocks=2**21)
