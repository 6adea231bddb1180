"""The Hopper kernel, interpreted on CPU, against the reference; its tiles and limits.

Interpreted is what is compiled, but for the products of tensor cores (`gpu_compat`).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention.cases import Case, make_inputs
from pallas_kernels.paged_attention.gpu import (
    kernel,
    paged_attention_gpu,
    ragged_paged_attention_gpu,
)
from pallas_kernels.paged_attention.gpu.rows import cut_ragged
from pallas_kernels.paged_attention.gpu.tiling import (
    GPU_SHARED_BYTES,
    GpuTiling,
    gpu_tiling,
)
from tests.pallas_kernels.paged_attention.running import attend

# The inputs are numbers of bfloat16, whose products are exact in float32. Weights, which
# add up to 1, are rounded by up to 2^-9 of each before they meet V, |V| < 5; results of a
# latent once more. float32 sums and powers of two are all that an lse suffers from.
TOLERANCE = 5 * 2**-9
LSE_TOLERANCE = 1e-4
FAR = 10 * TOLERANCE

H100 = "NVIDIA H100 80GB HBM3"
TILING = GpuTiling(chunk_tokens=64, stages=2, row_groups=1, value_parts=1, splits=1)


@dataclasses.dataclass(frozen=True)
class Run:
    case: Case
    tiling: GpuTiling = TILING
    dtype: str = "bfloat16"


def _case(name: str, *fields: dict[str, Any]) -> Case:
    """Later fields replace earlier ones."""
    merged: dict[str, Any] = dict(name=name)
    for more in fields:
        merged.update(more)
    return Case(**merged)


def _decode(name, **changed):
    shape = dict(num_heads=3, kv_heads=1, head_dim=32, block_size=16)
    return _case(name, shape, dict(context_lens=(0, 150, 77)), changed)


def _ragged(name, **changed):
    shape = dict(num_heads=3, kv_heads=1, head_dim=16, block_size=24)
    lengths = dict(context_lens=(1, 90, 60), query_lens=(1, 45, 1))
    padding = dict(padding_seqs=1, padding_tokens=3)
    return _case(name, shape, lengths, padding, changed)


LATENT: dict[str, Any] = dict(
    num_heads=4, kv_heads=1, head_dim=160, value_dim=128, block_size=32
)
RUNS = {
    # more chunks than places in the ring
    "decode": Run(_decode("decode", context_lens=(0, 200))),
    "split_window_cap": Run(
        _decode("split_window_cap", window=90, soft_cap=3.0, has_sinks=True),
        dataclasses.replace(TILING, splits=2),
    ),
    # 48 tokens of 64 places, two consumers of 64 rows
    "ragged_window_sinks": Run(
        _ragged("ragged", window=50, has_sinks=True),
        dataclasses.replace(TILING, chunk_tokens=48, row_groups=2),
    ),
    "float8": Run(
        _decode("float8", num_heads=4, kv_heads=2, block_size=8, context_lens=(70, 9)),
        dtype="float8_e4m3fn",
    ),
    # two consumers that split the columns of V
    "latent_int8": Run(
        _ragged("latent", **LATENT, context_lens=(40, 70), query_lens=(20, 1)),
        dataclasses.replace(TILING, value_parts=2),
        "int8",
    ),
    "latent": Run(
        _decode("latent", **LATENT, context_lens=(70, 64)),
        dataclasses.replace(TILING, value_parts=2),
    ),
}


def _inputs(run: Run):
    inputs = make_inputs(run.case, dtype=run.dtype, platform="gpu")
    return inputs._replace(q=inputs.q.astype(jnp.bfloat16).astype(jnp.float32))


def _assert_equal(actual, wanted):
    np.testing.assert_allclose(actual[0], wanted[0], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(actual[1], wanted[1], atol=LSE_TOLERANCE, rtol=0)


@functools.cache
def _compiled(run: Run, has_window: bool):
    op = ragged_paged_attention_gpu if run.case.query_lens else paged_attention_gpu
    options = run.case.options() | dict(tiling=run.tiling, interpret=True)
    if has_window:
        del options["window"]
    return jax.jit(functools.partial(op, **options))


def _run(run: Run, inputs, **traced):
    """Only rows of queries; those of padding must be finite."""
    out, lse = _compiled(run, bool(traced))(*inputs.arguments(), **traced)
    count = sum(run.case.query_lens or (1,) * len(run.case.context_lens))
    assert np.isfinite(out).all()
    assert not np.isnan(lse).any()
    return np.asarray(out)[:count], np.asarray(lse)[:count]


@pytest.mark.parametrize("name", RUNS)
def test_interpreted_kernel_is_the_reference(name):
    run = RUNS[name]
    inputs = _inputs(run)
    _assert_equal(_run(run, inputs), attend(run.case, inputs, "reference"))


def test_the_tables_are_looked_up(monkeypatch):
    """Were they not, the cases above would show it: blocks are permuted."""
    run = Run(_decode("identity", context_lens=(100, 40)))
    inputs = _inputs(run)
    wanted, _ = attend(run.case, inputs, "reference")
    kv = jnp.nan_to_num(inputs.cache.kv, nan=0.5)
    inputs = inputs._replace(cache=dataclasses.replace(inputs.cache, kv=kv))
    last = inputs.cache.num_blocks - 1
    monkeypatch.setattr(kernel, "_look_up", lambda *place: jnp.minimum(place[-1], last))
    actual, _ = _run(run, inputs)
    assert np.abs(actual - wanted).max(axis=(1, 2)).min() > FAR


@pytest.mark.parametrize("name", ["nan", "nan_split", "nan_ragged"])
def test_a_nan_of_its_own_context_is_not_hidden(name):
    """NaN that belongs to no context must not leak, but a diverged model must show."""
    case = _decode(name, context_lens=(0, 100, 20))
    if name == "nan_ragged":
        case = _ragged(name, block_size=16, context_lens=(1, 40), query_lens=(1, 5))
    tiling = dataclasses.replace(TILING, splits=2 if name == "nan_split" else 1)
    inputs = _inputs(Run(case))
    last = sum(case.query_lens or (1,) * len(case.context_lens)) - 1
    inputs = inputs._replace(q=inputs.q.at[last].set(jnp.nan))
    out, lse = _compiled(Run(case, tiling), False)(*inputs.arguments())
    for x in (np.isnan(out).all(axis=2), np.isnan(lse)):
        assert x[last].all()
        assert x.sum() == case.num_heads


def test_traced_window():
    """0 is no window, so that one program serves local and global layers."""
    run = Run(_decode("traced", context_lens=(100, 20)))
    inputs = _inputs(run)
    for window in (0, 40):
        case = dataclasses.replace(run.case, window=window or None)
        actual = _run(run, inputs, window=jnp.int32(window))
        _assert_equal(actual, attend(case, inputs, "reference"))


@pytest.mark.parametrize("groups", [1, 3, 8, 128])
def test_tiles_cover_each_row_once(groups):
    num_seqs_most, num_tokens, tile_rows = 5, 130, 64
    cut_rows = jax.jit(cut_ragged, static_argnums=(3, 4, 5))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(0, 26, num_seqs_most)
        num_seqs = int(rng.integers(0, num_seqs_most + 1))
        context_lens = lengths + rng.integers(0, 50, num_seqs_most)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        arrays = (np.asarray(x, np.int32) for x in (starts, context_lens, [num_seqs]))
        cut = jax.tree.map(
            np.asarray, cut_rows(*map(jnp.asarray, arrays), num_tokens, groups, tile_rows)
        )
        seen = np.zeros(num_tokens * groups, int)
        for tile, fields in enumerate(zip(*cut.tiles, strict=True)):
            sequence, query_row, first_row, num_rows = map(int, fields)
            assert query_row % 8 == 0
            assert query_row + tile_rows <= len(cut.row_of_query)
            i = np.arange(num_rows)
            rows = cut.row_of_query[query_row + i]
            seen[rows] += 1
            token = rows // groups
            assert ((starts[sequence] <= token) & (token < starts[sequence + 1])).all()
            position = context_lens[sequence] - (starts[sequence + 1] - token)
            np.testing.assert_array_equal((first_row + i) // groups, position)
            np.testing.assert_array_equal((first_row + i) % groups, rows % groups)
            np.testing.assert_array_equal(cut.row_of_result[rows], tile * tile_rows + i)
        live = np.arange(num_tokens * groups) < starts[num_seqs] * groups
        np.testing.assert_array_equal(seen, live)
        assert (cut.row_of_result[~live] >= len(cut.tiles.sequence) * tile_rows).all()


def _attempt(
    *,
    heads=4,
    kv_heads=2,
    dim=64,
    value_dim=None,
    block_size=16,
    dtype="bfloat16",
    **options,
):
    layout = kv_layout(kv_heads, dim, dtype, "gpu", value_dim)
    cache = make_cache(layout, num_layers=1, num_blocks=3, block_size=block_size)
    arguments = (
        jnp.zeros((1, heads, dim)),
        cache,
        0,
        jnp.zeros((1, 2), jnp.int32),
        jnp.ones((1,), jnp.int32),
    )
    op = functools.partial(paged_attention_gpu, scale=1.0, window=None, soft_cap=None)
    options = dict(device_kind=H100) | options
    jax.eval_shape(lambda: op(*arguments, sinks=None, **options))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(dtype="float32"), "float32.*10 bits"),
        (dict(block_size=4), "multiple of the 8 rows.*block_size=4"),
        (dict(dim=40), "multiple of 16.*head_dim=40"),
        (dict(dim=320), "at most 256 columns of V.*320"),
        (dict(kv_heads=1, dim=1088, value_dim=1024), "at most 512 columns of V.*1024"),
        (dict(kv_heads=1, dim=576, value_dim=480), "multiple of 128.*value_dim=480"),
        (dict(kv_heads=1, dim=144, value_dim=128, dtype="int8"), "multiple of 32.*144"),
        (
            dict(kv_heads=1, block_size=8, dtype="int8"),
            "32 scales per block.*8 tokens of 2",
        ),
        (dict(heads=17, kv_heads=17, dtype="int8"), "at most 32 scales per token.*34"),
        (dict(device_kind="NVIDIA B200"), "wgmma.*B200"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_limits_name_both_values_and_the_remedy(wrong, message):
    with pytest.raises(ValueError, match=message) as error:
        _attempt(**wrong)
    assert "use implementation='xla' or 'gpu_triton'" in str(error.value)


def test_the_chip_must_be_known():
    """A compiler that meets one without wgmma aborts the process."""
    message = r"needs device_kind, got None; pass jax.devices\(\)\[0\].device_kind"
    with pytest.raises(ValueError, match=message):
        _attempt(device_kind=None)


def test_tilings_must_fit_blocks():
    with pytest.raises(ValueError, match="chunk_tokens=48.*block_size=32"):
        _attempt(block_size=32, tiling=dataclasses.replace(TILING, chunk_tokens=48))


@pytest.mark.parametrize(
    "wrong",
    [dict(chunk_tokens=12), dict(stages=1), dict(splits=0), dict(row_groups=3)],
    ids=str,
)
def test_impossible_tilings(wrong):
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(TILING, **wrong)


SIZES: dict[str, Any] = dict(
    num_seqs=4,
    num_queries=1,
    groups=4,
    kv_heads=8,
    head_dim=128,
    value_dim=128,
    columns=256,
    num_scales=0,
    block_size=16,
    max_context=8192,
    device_kind=H100,
)
LATENT_SIZES: dict[str, Any] = dict(
    groups=128, kv_heads=1, head_dim=576, value_dim=512, columns=576
)


def _tiling(**changed: Any) -> GpuTiling:
    return gpu_tiling(**SIZES | changed)


@pytest.mark.parametrize(
    "changed",
    [
        dict(),
        dict(num_queries=512),
        dict(num_queries=512, head_dim=256, value_dim=256, columns=512),
        dict(num_queries=512, head_dim=256, value_dim=256, columns=512, num_scales=16),
        LATENT_SIZES,
        LATENT_SIZES | dict(num_scales=1),
    ],
    ids=lambda changed: "-".join(f"{k}={v}" for k, v in changed.items())[:40] or "decode",
)
@pytest.mark.parametrize("block_size", [8, 16, 24, 64, 72, 256])
def test_chosen_tilings_fit(changed, block_size):
    sizes = SIZES | changed | dict(block_size=block_size)
    tiling = _tiling(**changed, block_size=block_size)
    assert tiling.chunk_tokens % block_size == 0 or block_size % tiling.chunk_tokens == 0
    names = ("head_dim", "value_dim", "columns", "num_scales")
    out_itemsize = 2 if tiling.value_parts == 2 else 4
    used = tiling.shared_bytes(out_itemsize=out_itemsize, **{k: sizes[k] for k in names})
    assert used <= GPU_SHARED_BYTES


def test_few_long_sequences_are_split():
    assert _tiling(num_seqs=1).splits == 16  # of 8,192 tokens
    assert _tiling(num_seqs=512).splits == 1
    assert _tiling(num_seqs=1, max_context=600).splits == 1


def test_too_much_shared_memory():
    with pytest.raises(ValueError, match="head_dim=1024.*shared memory"):
        _tiling(head_dim=1024, columns=2048)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_kernel_on_a_gpu_is_the_reference(name):
    run = RUNS[name]
    inputs = _inputs(run)
    wanted = attend(run.case, inputs, "reference")
    device_kind = jax.devices()[0].device_kind
    for tiling in (None, run.tiling):
        options = dict(tiling=tiling, device_kind=device_kind)
        _assert_equal(attend(run.case, inputs, "gpu", **options), wanted)
