"""The CPU kernel against the reference, on hostile inputs and every kind of pool."""

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

import numba

from pallas_kernels import numba_ffi
from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import Tiling, paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention.cases import (
    CHUNKED_CASES,
    DECODE_CASES,
    RAGGED_CASES,
    Case,
    make_inputs,
)
from pallas_kernels.write_kv import write_kv
from tests.pallas_kernels.paged_attention.running import TOLERANCE, attend
from tests.pallas_kernels.paged_attention.test_properties import case_fields

DECODE = {case.name: case for case in DECODE_CASES}
RAGGED = {case.name: case for case in RAGGED_CASES}
CASES = [
    pytest.param(case, id=f"{'ragged' if case.query_lens else 'decode'}-{case.name}")
    for case in (*DECODE_CASES, *RAGGED_CASES, *CHUNKED_CASES)
]
DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")


def expected(case, inputs, **changed):
    """Of the reference, on the same numbers in a float32 pool."""
    cache = inputs.cache
    layout = kv_layout(
        cache.layout.kv_heads, case.head_dim, "float32", "cpu", case.value_dim
    )
    rows = cache.rows().astype(jnp.float32)
    inputs = inputs._replace(cache=KVBlocks.of_rows(layout, rows))
    return attend(case, inputs, "reference", **changed)


def assert_equal(actual, wanted):
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_named_cases(case, dtype):
    """All pools hold the same rounded numbers for both, so one tolerance serves all."""
    inputs = make_inputs(case, platform="cpu", dtype=dtype)
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@settings(max_examples=12, deadline=None)
@given(
    fields=case_fields(),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from(DTYPES),
)
def test_any_shape(fields, seed, dtype):
    case = Case(**fields)
    inputs = make_inputs(case, seed=seed, platform="cpu", dtype=dtype)
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 16, 33])
def test_any_number_of_heads_shares_a_kv_head(group):
    """Four rows at once and a rest, and tiles of rows from 16 on."""
    case = dataclasses.replace(DECODE["k3_b3"], num_heads=3 * group)
    inputs = make_inputs(case, platform="cpu")
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@pytest.mark.parametrize("query_lens", [None, (1, 9, 1, 400)], ids=["decode", "ragged"])
def test_split_contexts(query_lens):
    """Long contexts beside short ones are cut into parts and merged."""
    case = Case(
        name="split",
        num_heads=6,
        kv_heads=2,
        head_dim=32,
        block_size=16,
        context_lens=(4000, 9, 1, 700),
        query_lens=query_lens,
        has_sinks=True,
    )
    inputs = make_inputs(case, platform="cpu")
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@pytest.mark.parametrize("heads", [8, 128])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_latents_of_deepseek(heads, dtype):
    case = Case(
        name="mla",
        num_heads=heads,
        kv_heads=1,
        head_dim=576,
        value_dim=512,
        block_size=16,
        context_lens=(200, 33),
    )
    inputs = make_inputs(case, platform="cpu", dtype=dtype)
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_traced_window(cases):
    case = cases["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    unbounded = dataclasses.replace(case, window=None)
    local = attend(case, inputs, "cpu", window=jnp.int32(case.window))
    assert_equal(local, expected(case, inputs))
    everything = attend(case, inputs, "cpu", window=jnp.int32(0))
    assert_equal(everything, expected(unbounded, inputs))


def test_entries_before_the_window_are_not_read():
    """They name no block; reading them would be a fault of the machine."""
    case = DECODE["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    before = np.maximum(np.asarray(case.context_lens) - case.window, 0) // case.block_size
    entry = np.arange(inputs.block_tables.shape[1])
    tables = jnp.where(entry < before[:, None], 2**30, inputs.block_tables)
    freed = attend(case, inputs._replace(block_tables=tables), "cpu")
    assert_equal(freed, expected(case, inputs))


def test_bfloat16_queries_are_attended_in_float32():
    case = RAGGED["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    q = inputs.q.astype(jnp.bfloat16)
    out, lse = attend(case, inputs._replace(q=q), "cpu")
    exact, exact_lse = expected(case, inputs._replace(q=q.astype(jnp.float32)))
    assert out.dtype == jnp.bfloat16
    # one rounding of the result: half a unit of 8 bits
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=2**-8, atol=1e-5)
    np.testing.assert_allclose(lse, exact_lse, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_nan_of_its_own_context_is_not_hidden():
    """NaN that belongs to no context must not leak, but a diverged model must show."""
    for cases in (DECODE, RAGGED):
        inputs = make_inputs(cases["k3_b3"], platform="cpu")
        q = inputs.q.at[-1].set(jnp.nan)
        if inputs.num_seqs is not None:
            q = inputs.q.at[sum(cases["k3_b3"].query_lens) - 1].set(jnp.nan)
        op = paged_attention if inputs.num_seqs is None else ragged_paged_attention
        out = op(*inputs._replace(q=q).arguments(), scale=1.0, implementation="cpu")
        assert jnp.isnan(out).any(axis=(1, 2)).sum() == 1


def test_results_do_not_depend_on_the_threads():
    """Each part and each merge is the same whoever computes it."""
    case = dataclasses.replace(DECODE["k3_b3"], context_lens=(3000, 5, 800, 64))
    inputs = make_inputs(case, platform="cpu")
    first = attend(case, inputs, "cpu")
    for _ in range(10):
        for a, b in zip(attend(case, inputs, "cpu"), first, strict=True):
            np.testing.assert_array_equal(a, b)


def test_two_python_threads():
    """Each sees its own problem, at any time."""
    cases = [dataclasses.replace(DECODE["k3_b3"], context_lens=(n, 40)) for n in (900, 500)]
    inputs = [make_inputs(case, platform="cpu") for case in cases]
    wanted = [attend(*pair, "cpu") for pair in zip(cases, inputs, strict=True)]

    def repeat(index):
        return [attend(cases[index], inputs[index], "cpu") for _ in range(30)]

    with ThreadPoolExecutor(2) as pool:
        for index, results in enumerate(pool.map(repeat, (0, 1))):
            for result in results:
                for a, b in zip(result, wanted[index], strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_a_step_of_padding(cases):
    """No sequence at all, as when an engine warms up."""
    inputs = make_inputs(cases["k3_b3"], platform="cpu")
    inputs = inputs._replace(context_lens=jnp.zeros_like(inputs.context_lens))
    op = paged_attention
    if inputs.num_seqs is not None:
        inputs = inputs._replace(
            query_starts=jnp.zeros_like(inputs.query_starts),
            num_seqs=jnp.zeros(1, jnp.int32),
        )
        op = ragged_paged_attention
    options = dict(scale=1.0, return_lse=True, implementation="cpu")
    out, lse = op(*inputs.arguments(), **options)
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(lse, -np.inf)


def test_it_chooses_its_own_tiles():
    inputs = make_inputs(DECODE["mha_b1"], platform="cpu")
    tiling = Tiling(blocks_per_chunk=1, queries_per_tile=1)
    with pytest.raises(ValueError, match="'cpu' takes no tiling, got tiling=.*omit it"):
        paged_attention(*inputs.arguments(), scale=1.0, implementation="cpu", tiling=tiling)


def test_it_wants_the_layout_of_its_platform():
    inputs = make_inputs(DECODE["mqa_b2"], platform="tpu")
    with pytest.raises(ValueError, match="implementation='cpu'.*'cpu'.*for 'tpu'"):
        paged_attention(*inputs.arguments(), scale=1.0, implementation="cpu")


@functools.cache
def compiled_step(dtype, num_blocks):
    """Eight layers that each store and attend, in a scan that carries the pool."""
    layout = kv_layout(2, 64, dtype, "cpu")
    make = functools.partial(
        make_cache, layout, num_layers=8, num_blocks=num_blocks, block_size=16
    )
    cache = jax.eval_shape(make)

    def step(cache, q, new_kv, slots, tables, context_lens):
        def layer_step(carry, layer):
            q, cache = carry
            cache = write_kv(cache, new_kv, layer, slots, implementation="cpu")
            out = paged_attention(
                q, cache, layer, tables, context_lens, scale=1.0, implementation="cpu"
            )
            return (q + out, cache), None

        layers = jnp.arange(cache.num_layers, dtype=jnp.int32)
        return jax.lax.scan(layer_step, (q, cache), layers)[0]

    def shaped(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    lowered = jax.jit(step, donate_argnums=0).lower(
        cache,
        shaped(jnp.float32, 32, 4, 64),
        shaped(jnp.float32, 32, 4, 64),
        shaped(jnp.int32, 32),
        shaped(jnp.int32, 32, 64),
        shaped(jnp.int32, 32),
    )
    return lowered.compile().memory_analysis(), cache


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_pool_is_never_copied(dtype):
    sizes = [compiled_step(dtype, count) for count in (2048, 8192)]
    for memory, cache in sizes:
        pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
        assert memory.alias_size_in_bytes == pool_bytes
        assert memory.temp_size_in_bytes < 0.02 * pool_bytes
    assert sizes[0][0].temp_size_in_bytes == sizes[1][0].temp_size_in_bytes


def is_nan(case, inputs):
    """All numbers of a result; `attend` would refuse such ones."""
    op = ragged_paged_attention if case.query_lens else paged_attention
    run = functools.partial(op, **case.options(), return_lse=True, implementation="cpu")
    return all(np.isnan(x).all() for x in jax.block_until_ready(run(*inputs.arguments())))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("context_lens", [(9, 1), (9000, 1)], ids=["one thread", "all"])
def test_a_worker_that_raises_leaves_nan(context_lens):
    @numba.cfunc("int64(int64, int64)")
    def worker(address, plan):
        raise MemoryError("no scratch")

    case = dataclasses.replace(DECODE["k3_b3"], context_lens=context_lens)
    inputs = make_inputs(case, platform="cpu")
    assert not is_nan(case, inputs)  # puts its own worker into the table
    before, numba_ffi._table[0] = numba_ffi._table[0], worker.address
    try:
        assert is_nan(case, inputs)
    finally:
        numba_ffi._table[0] = before
    assert_equal(attend(case, inputs, "cpu"), expected(case, inputs))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_step_that_cannot_be_planned_leaves_nan():
    """Of fewer than no queries: its list of jobs cannot be allocated."""
    case = RAGGED["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    starts = jnp.arange(len(inputs.query_starts), dtype=jnp.int32) * -(10**5)
    assert is_nan(case, inputs._replace(query_starts=starts))


@pytest.mark.parametrize(
    "broken",
    [
        dict(layer=jnp.int32(99)),
        dict(layer=jnp.int32(-1)),
        dict(context_lens=jnp.asarray([1000, 17], jnp.int32)),
        dict(context_lens=jnp.asarray([2, 17], jnp.int32)),
        dict(num_seqs=jnp.asarray([10**6], jnp.int32)),
        dict(query_starts=jnp.asarray([0, 10**6, 10**6 + 1], jnp.int32)),
        dict(query_starts=jnp.asarray([0, -3, 4], jnp.int32)),
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_numbers_that_break_the_contract_give_nan_and_no_crash(broken):
    case = Case(
        name="bounds",
        num_heads=4,
        kv_heads=2,
        head_dim=16,
        block_size=4,
        context_lens=(9, 17),
        query_lens=(3, 1),
    )
    inputs = make_inputs(case, platform="cpu")._replace(**broken)
    out = ragged_paged_attention(
        *inputs.arguments(), **case.options(), implementation="cpu"
    )
    assert np.isnan(out).all()
