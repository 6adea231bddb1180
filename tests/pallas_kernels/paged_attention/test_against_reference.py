"""The reference against dense attention, and `xla` against the reference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.paged_attention import Tiling, paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention.cases import (
    CHUNKED_CASES,
    DECODE_CASES,
    RAGGED_CASES,
    make_inputs,
)
from pallas_kernels.paged_attention.xla import by_batch
from tests.pallas_kernels.paged_attention.dense import dense_attention
from tests.pallas_kernels.paged_attention.running import TOLERANCE, attend, attend_xla

DECODE = {case.name: case for case in DECODE_CASES}
RAGGED = {case.name: case for case in RAGGED_CASES}
CASES = [
    *(pytest.param(case, id=f"decode-{name}") for name, case in DECODE.items()),
    *(pytest.param(case, id=f"ragged-{name}") for name, case in RAGGED.items()),
    *(
        pytest.param(case, id=f"{kind}-{case.name}")
        for kind, case in zip(("decode", "ragged"), CHUNKED_CASES, strict=True)
    ),
]


@functools.cache
def expected(case):
    """Of the reference, on a pool in the layout of the CPU."""
    return attend(case, make_inputs(case, platform="cpu"), "reference")


def assert_equal(actual, wanted, tolerance=TOLERANCE):
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_reference_is_dense_attention(case):
    assert_equal(expected(case), dense_attention(case, make_inputs(case, platform="cpu")))


@pytest.mark.parametrize("case", CASES)
def test_xla_is_the_reference(case):
    assert_equal(attend(case, make_inputs(case, platform="cpu"), "xla"), expected(case))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(DECODE["mqa_b2"], id="decode-packed"),
        pytest.param(RAGGED["k3_b3"], id="ragged-packed-padded-rows"),
        pytest.param(RAGGED["everything_b16"], id="ragged-padded-dim"),
    ],
)
@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_tpu_layout_changes_nothing(case, implementation):
    inputs = make_inputs(case, platform="tpu")
    assert inputs.cache.layout != make_inputs(case, platform="cpu").cache.layout
    assert_equal(attend(case, inputs, implementation), expected(case))


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_tiles_in_batches_are_tiles_in_a_loop(cases):
    """The form of GPU and TPU, which a CPU does not choose by itself."""
    case = cases["everything_b16"]
    inputs = make_inputs(case, platform="cpu")
    assert_equal(attend_xla(case, inputs, by_batch), expected(case))


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_traced_window(cases):
    """One program serves local and global layers; 0 is no window."""
    case = cases["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    unbounded = dataclasses.replace(case, window=None)
    for implementation in ("reference", "xla"):
        local = attend(case, inputs, implementation, window=jnp.int32(case.window))
        everything = attend(case, inputs, implementation, window=jnp.int32(0))
        assert_equal(local, expected(case))
        assert_equal(everything, expected(unbounded))


def test_entries_before_the_window_are_not_read():
    """A local layer may have freed them: they name no block, and the blocks hold NaN."""
    case = DECODE["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    before = np.maximum(np.asarray(case.context_lens) - case.window, 0) // case.block_size
    entry = np.arange(inputs.block_tables.shape[1])
    tables = jnp.where(entry < before[:, None], -7, inputs.block_tables)
    for implementation in ("reference", "xla"):
        freed = attend(case, inputs._replace(block_tables=tables), implementation)
        assert_equal(freed, expected(case))


@pytest.mark.parametrize("cases", [DECODE, RAGGED], ids=["decode", "ragged"])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["everything_b16", "mla_b16"])
def test_other_pools(cases, platform, dtype, name):
    """Both read the same rounded numbers, so the float32 tolerance holds."""
    case = cases[name]
    inputs = make_inputs(case, platform=platform, dtype=dtype)
    assert_equal(attend(case, inputs, "xla"), attend(case, inputs, "reference"))


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_scales_are_applied_to_logits_and_probabilities(dtype):
    """Attention over a quantised pool is dense attention over what it stands for."""
    case = RAGGED["everything_b16"]
    inputs = make_inputs(case, platform="cpu", dtype=dtype)
    assert_equal(attend(case, inputs, "reference"), dense_attention(case, inputs))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_expanded_latents_equal_absorbed_projections(implementation, dtype):
    """K and V made from a latent give what projected queries read in it (MLA)."""
    latent, rope, heads, nope, values = 128, 16, 4, 24, 40
    case = RAGGED["mla_b16"]
    inputs = make_inputs(case, platform="cpu", dtype=dtype)
    rng = np.random.default_rng(1)
    up_k, up_v = (
        jnp.asarray(rng.standard_normal((latent, heads, size)) * latent**-0.5, jnp.float32)
        for size in (nope, values)
    )
    num_tokens = inputs.q.shape[0]
    q = jnp.asarray(rng.standard_normal((num_tokens, heads, nope + rope)), jnp.float32)
    absorbed = jnp.einsum("thn,lhn->thl", q[..., :nope], up_k)
    absorbed = jnp.concatenate([absorbed, q[..., nope:]], axis=-1)
    out, lse = attend(case, inputs._replace(q=absorbed), "reference")
    wanted = np.einsum("thl,lhv->thv", out, up_v)

    def expand(rows):
        k = jnp.einsum("cl,lhn->chn", rows[:, :latent], up_k)
        shared = jnp.broadcast_to(rows[:, None, latent:], (len(rows), heads, rope))
        return (
            jnp.concatenate([k, shared], axis=-1),
            jnp.einsum("cl,lhv->chv", rows[:, :latent], up_v),
        )

    actual = attend(case, inputs._replace(q=q), implementation, expand=expand)
    assert_equal(actual, (wanted, lse))


def test_bfloat16_queries_are_attended_in_float32():
    case = RAGGED["window_b8"]
    inputs = make_inputs(case, platform="cpu")
    q = inputs.q.astype(jnp.bfloat16)
    out, lse = attend(case, inputs._replace(q=q), "xla")
    exact, exact_lse = attend(case, inputs._replace(q=q.astype(jnp.float32)), "reference")
    assert out.dtype == jnp.bfloat16
    # one rounding of the result: half a unit of 8 bits
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=2**-8, atol=1e-5)
    np.testing.assert_allclose(lse, exact_lse, atol=TOLERANCE, rtol=TOLERANCE)


def test_any_tiling_gives_the_same():
    case = RAGGED["k3_b3"]
    inputs = make_inputs(case, platform="cpu")
    for blocks, queries in ((1, 64), (7, 1), (500, 5)):
        tiling = Tiling(blocks_per_chunk=blocks, queries_per_tile=queries)
        assert_equal(attend(case, inputs, "xla", tiling=tiling), expected(case))


def test_a_decode_is_a_ragged_run_of_one_query():
    case = DECODE["sinks_b64"]
    inputs = make_inputs(case, platform="cpu")
    live = np.asarray(inputs.context_lens) > 0
    count = len(live)
    out = ragged_paged_attention(
        *inputs.arguments(),
        jnp.arange(count + 1, dtype=jnp.int32),
        jnp.asarray([count], jnp.int32),
        **case.options(),
        implementation="xla",
    )
    np.testing.assert_allclose(out[live], expected(case)[0][live], atol=TOLERANCE)


def test_lse_merges_halves_of_a_context():
    """Attention over [0, n) from that over [0, m) and that over the window [m, n)."""
    case = dataclasses.replace(DECODE["window_b8"], context_lens=(300,), window=None)
    inputs = make_inputs(case, platform="cpu")
    whole, _ = attend(case, inputs, "xla")
    first = inputs._replace(context_lens=jnp.asarray([140], jnp.int32))
    parts = [attend(case, first, "xla"), attend(case, inputs, "xla", window=160)]
    weights = jax.nn.softmax(np.stack([lse for _, lse in parts]), axis=0)
    merged = sum(w[..., None] * out for w, (out, _) in zip(weights, parts, strict=True))
    np.testing.assert_allclose(merged, whole, atol=TOLERANCE)


def test_lse_is_optional():
    case = DECODE["mha_b1"]
    inputs = make_inputs(case, platform="cpu")
    out = paged_attention(*inputs.arguments(), **case.options(), implementation="xla")
    np.testing.assert_allclose(out, expected(case)[0], atol=TOLERANCE)
