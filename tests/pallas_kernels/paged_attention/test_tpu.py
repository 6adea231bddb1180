"""The TPU kernel, interpreted with simulated DMA and a detector of races.

Hostile inputs as for the other implementations, in small: an interpreted DMA costs
milliseconds. A table entry that must not be read names no block, so reading it raises.
"""

import dataclasses
import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import Tiling, paged_attention
from pallas_kernels.paged_attention.cases import Case, Inputs, make_inputs
from pallas_kernels.paged_attention.reference import (
    paged_attention_reference,
    ragged_paged_attention_reference,
)
from pallas_kernels.paged_attention.tpu import (
    kernel,
    paged_attention_tpu,
    ragged_paged_attention_tpu,
)
from pallas_kernels.paged_attention.tpu.plan import Plan
from pallas_kernels.paged_attention.tpu.tiling import TPU_CHIPS, tpu_tiling
from tests.pallas_kernels.paged_attention.running import TOLERANCE

BFLOAT16_TOLERANCE = 2e-2
INTERPRET = pltpu.InterpretParams(detect_races=True)

GQA = dict(num_heads=4, kv_heads=2, head_dim=32, block_size=4)
PACKED = dict(num_heads=6, kv_heads=3, head_dim=64, block_size=3)
WIDE = dict(num_heads=3, kv_heads=1, head_dim=256, block_size=2)
LATENT = dict(num_heads=3, kv_heads=1, head_dim=144, value_dim=128, block_size=4)
WHOLE_LANES = dict(num_heads=4, kv_heads=2, head_dim=128, block_size=32)
DECODE = dict(context_lens=(0, 1, 8, 13))
RAGGED = dict(
    context_lens=(9, 13, 13), query_lens=(9, 1, 3), padding_seqs=1, padding_tokens=3
)
EVERYTHING = dict(window=6, soft_cap=2.0, has_sinks=True)

CASES = [
    (Case(name="decode", **GQA, **DECODE, **EVERYTHING), "float32", 1),
    (Case(name="decode_packed", **PACKED, **DECODE), "float32", 1),
    (Case(name="decode_b1", **GQA | dict(block_size=1), **DECODE), "bfloat16", 1),
    (Case(name="decode_latent", **LATENT, **DECODE), "float8_e4m3fn", 1),
    # scales that lie as the rows do, and others
    (Case(name="decode_whole_lanes", **WHOLE_LANES, context_lens=(70, 31)), "int8", 1),
    (Case(name="decode_wide", **WIDE, **DECODE, **EVERYTHING), "int8", 1),
    (Case(name="decode_packed_scales", **PACKED, **DECODE), "float8_e4m3fn", 1),
    (Case(name="ragged", **GQA, **RAGGED, **EVERYTHING), "float32", 8),
    (Case(name="ragged_packed", **PACKED, **RAGGED), "int8", 8),
    (Case(name="ragged_latent", **LATENT, **RAGGED, **EVERYTHING), "bfloat16", 4),
]


def attend(case: Case, inputs: Inputs, queries_per_tile: int, **changed):
    """Output and lse of the op's queries. Padded rows must be finite."""
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_tpu if is_ragged else paged_attention_tpu
    tiling = Tiling(blocks_per_chunk=2, queries_per_tile=queries_per_tile)
    options = dict(tiling=tiling, interpret=INTERPRET, **case.options()) | changed
    out, lse = jax.jit(functools.partial(op, **options))(*inputs.arguments())
    assert np.isfinite(np.asarray(out, np.float32)).all()
    assert not np.isnan(lse).any()
    return _queries(case, out, lse)


def _queries(case: Case, out, lse):
    count = sum(case.query_lens) if case.query_lens else len(case.context_lens)
    return np.asarray(out[:count], np.float32), np.asarray(lse[:count])


@functools.cache
def expected(case: Case, dtype: str):
    """Of the reference, on a pool in the layout of the CPU."""
    inputs = make_inputs(case, dtype=dtype, platform="cpu")
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_reference if is_ragged else paged_attention_reference
    run = jax.jit(functools.partial(op, **case.options()))
    return _queries(case, *run(*inputs.arguments()))


def assert_equal(actual, wanted, tolerance=TOLERANCE):
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("case", "dtype", "queries_per_tile"),
    [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in CASES],
)
def test_is_the_reference(case, dtype, queries_per_tile):
    inputs = make_inputs(case, dtype=dtype, platform="tpu")
    assert_equal(attend(case, inputs, queries_per_tile), expected(case, dtype))


def test_products_of_bfloat16():
    case = Case(name="decode", **GQA, **DECODE)
    inputs = make_inputs(case, dtype="bfloat16", platform="tpu")
    inputs = inputs._replace(q=inputs.q.astype(jnp.bfloat16))
    actual = attend(case, inputs, 1)
    assert_equal(actual, expected(case, "bfloat16"), BFLOAT16_TOLERANCE)
    assert np.abs(actual[0] - expected(case, "bfloat16")[0]).max() > TOLERANCE


@pytest.mark.parametrize("lengths", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_tables_that_exceed_smem_are_read_in_parts(lengths):
    """Two rows of tables at a time, the last part half empty."""
    case = Case(name="split", **GQA, **lengths | dict(context_lens=(9, 13, 13)))
    inputs = make_inputs(case, platform="tpu")
    row_bytes = 4 * inputs.block_tables.shape[1]
    queries_per_tile = 8 if case.query_lens else 1
    actual = attend(case, inputs, queries_per_tile, table_bytes=2 * row_bytes + 3)
    assert_equal(actual, expected(case, "float32"))


def test_traced_window():
    """One program serves local and global layers; 0 is no window. Here on one core."""
    case = Case(name="window", **GQA, **RAGGED, window=6)
    inputs = make_inputs(case, platform="tpu")
    tiling = Tiling(blocks_per_chunk=2, queries_per_tile=8)
    options = dict(tiling=tiling, interpret=INTERPRET, device_kind="TPU v6 lite")
    options = case.options() | options
    del options["window"]
    run = jax.jit(functools.partial(ragged_paged_attention_tpu, **options))
    for window in (6, 0):
        wanted = expected(dataclasses.replace(case, window=window or None), "float32")
        actual = run(*inputs.arguments(), window=jnp.int32(window))
        assert_equal(_queries(case, *actual), wanted)
    assert run._cache_size() == 1


def test_the_tables_are_looked_up(monkeypatch):
    """Were they not, the cases above would show it: blocks are permuted."""
    monkeypatch.setattr(kernel, "_look_up", lambda ref, plan, tile, entry: entry + 1)
    case = Case(name="identity", **GQA, context_lens=(8, 13))
    inputs = make_inputs(case, platform="tpu")
    kv = jnp.nan_to_num(inputs.cache.kv, nan=0.5)
    inputs = inputs._replace(cache=dataclasses.replace(inputs.cache, kv=kv))
    actual, _ = attend(case, inputs, 1)
    difference = np.abs(actual - expected(case, "float32")[0]).max(axis=(1, 2))
    assert difference.min() > 50 * TOLERANCE


@pytest.mark.parametrize(
    ("lengths", "window", "blocks"),
    [
        (dict(context_lens=(0, 1, 8, 13)), 6, 0 + 1 + 2 + 3),
        # tiles of 8: of 9 queries two, which end at 8 and at 9
        (dict(context_lens=(9, 13), query_lens=(9, 1)), None, (2 + 3) + 4),
    ],
)
def test_copies_are_those_of_the_blocks_that_are_seen(monkeypatch, lengths, window, blocks):
    """Each once per tile; also every query and every row of the result once."""
    copies = Counter()

    class Counted:
        def __init__(self, source, target, semaphore):
            self._copy = make_copy(source, target, semaphore)
            self._shape = source.shape

        def start(self):
            jax.debug.callback(lambda: copies.update([self._shape]))
            self._copy.start()

        def wait(self):
            self._copy.wait()

    make_copy = pltpu.make_async_copy
    monkeypatch.setattr(kernel.pltpu, "make_async_copy", Counted)
    case = Case(name="counted", **GQA, **lengths, window=window)
    inputs = make_inputs(case, platform="tpu")
    attend(case, inputs, 8 if case.query_lens else 1)
    jax.effects_barrier()
    assert copies[inputs.cache.kv.shape[2:]] == blocks
    queries = (
        sum(case.query_lens) if case.query_lens else np.count_nonzero(case.context_lens)
    )
    assert copies[(case.num_heads, 128)] == queries
    assert copies[(case.num_heads, 256)] == queries
    assert copies.total() == blocks + 2 * queries


@pytest.mark.parametrize("device_kind", [None, *TPU_CHIPS])
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("num_queries", [1, 2048])
@pytest.mark.parametrize(
    ("kv_heads", "num_heads", "head_dim", "value_dim", "dtype"),
    [
        (8, 32, 128, None, "bfloat16"),
        (32, 32, 128, None, "float32"),
        (3, 9, 64, None, "bfloat16"),
        (1, 8, 256, None, "int8"),
        (1, 128, 576, 512, "bfloat16"),
    ],
)
def test_tiles_fit_the_chip(
    device_kind, block_size, num_queries, kv_heads, num_heads, head_dim, value_dim, dtype
):
    chip = TPU_CHIPS[device_kind or "TPU v4"]
    sizes = dict(
        layout=kv_layout(kv_heads, head_dim, dtype, "tpu", value_dim),
        query_dtype=np.dtype(jnp.bfloat16),
        block_size=block_size,
        blocks_per_sequence=4096 // block_size,
        num_heads=num_heads,
    )
    try:
        tiling = tpu_tiling(device_kind, num_queries=num_queries, **sizes)
    except ValueError as error:  # two blocks of 8 MiB, and copies of one
        assert (kv_heads, block_size) == (32, 256) and chip.vmem_bytes <= 64 * 2**20
        assert "bytes of VMEM" in str(error)
        return
    plan = Plan(num_cores=1, **dataclasses.asdict(tiling), **sizes)
    assert plan.vmem_bytes < chip.vmem_bytes
    assert num_queries > 1 or tiling.queries_per_tile == 1
    assert plan.chunk_tokens <= 1024


def test_errors():
    case = Case(name="decode", **GQA, context_lens=(8, 13))
    inputs = make_inputs(case, platform="tpu")
    with pytest.raises(ValueError, match="laid out for 'tpu'"):
        arguments = make_inputs(case, platform="gpu").arguments()
        paged_attention(*arguments, scale=1.0, implementation="tpu")
    with pytest.raises(ValueError, match="device_kind='TPU v0' is not known"):
        attend(case, inputs, 1, device_kind="TPU v0")
    with pytest.raises(ValueError, match="4 blocks needs 16 bytes of SMEM, which has 15"):
        attend(case, inputs, 1, table_bytes=15)
