"""Cascade decode is plain decode, whatever part of the context is shared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.paged_attention import cascade_paged_attention, paged_attention
from pallas_kernels.paged_attention.cases import Case, make_inputs
from tests.pallas_kernels.paged_attention.running import TOLERANCE

SHARED = 3  # blocks


def inputs_of(case: Case, dtype: str):
    """Tables that begin with the same blocks; the first and the last row are padding."""
    inputs = make_inputs(case, platform="cpu", dtype=dtype)
    tables = inputs.block_tables.at[:, :SHARED].set(inputs.block_tables[1, :SHARED])
    tables = tables.at[0].set(0)
    lens = inputs.context_lens.at[jnp.asarray([0, -1])].set(0)
    return inputs._replace(block_tables=tables, context_lens=lens)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("value_dim", [None, 16])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_cascade_is_plain_decode(implementation, dtype, value_dim, has_sinks):
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    case = Case(
        name="cascade",
        num_heads=6,
        kv_heads=1 if value_dim else 2,
        head_dim=32,
        value_dim=value_dim,
        block_size=8,
        context_lens=(50, 100, 24, 25, 77, 30),
        soft_cap=4.0,
        has_sinks=has_sinks,
    )
    inputs = inputs_of(case, dtype)
    options = {k: v for k, v in case.options().items() if k != "window"}
    wanted = paged_attention(*inputs.arguments(), **options, implementation="reference")
    actual = jax.jit(
        lambda *arrays: cascade_paged_attention(
            *arrays, **options, shared_blocks=SHARED, implementation=implementation
        )
    )(*inputs.arguments())
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE, rtol=TOLERANCE)
    assert not np.asarray(actual)[[0, -1]].any()


def test_windows_are_refused():
    case = Case(
        name="few", num_heads=2, kv_heads=1, head_dim=8, block_size=4, context_lens=(9, 9)
    )
    with pytest.raises(TypeError, match="window"):
        cascade_paged_attention(
            *make_inputs(case, platform="cpu").arguments(),
            scale=1.0,
            shared_blocks=1,
            implementation="xla",
            window=3,
        )


def test_something_must_be_left():
    case = Case(
        name="few", num_heads=2, kv_heads=1, head_dim=8, block_size=4, context_lens=(9, 9)
    )
    inputs = make_inputs(case, platform="cpu")
    assert inputs.block_tables.shape == (2, 3)
    for shared in (0, 3):
        with pytest.raises(ValueError, match=rf"shared_blocks={shared} must be.*\(2, 3\)"):
            cascade_paged_attention(
                *inputs.arguments(), scale=1.0, shared_blocks=shared, implementation="xla"
            )


def test_the_prefix_is_read_once():
    """K and V of the prefix enter one product with the queries of all sequences."""
    case = Case(
        name="once",
        num_heads=4,
        kv_heads=2,
        head_dim=8,
        block_size=4,
        context_lens=(40,) * 9,
    )
    inputs = inputs_of(case, "float32")

    def run(*arrays):
        return cascade_paged_attention(
            *arrays, scale=1.0, shared_blocks=SHARED, implementation="xla"
        )

    text = str(jax.make_jaxpr(run)(*inputs.arguments()))
    rows = len(inputs.context_lens) * case.num_heads // case.kv_heads
    assert f"f32[{case.kv_heads},{rows},{SHARED * case.block_size}]" in text
    assert jnp.isfinite(run(*inputs.arguments())).all()
