"""The tolerance is tight enough: each planted fault exceeds it by far."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.paged_attention.cases import Case, Inputs, make_inputs
from tests.pallas_kernels.paged_attention.running import TOLERANCE, attend

SEQ = 0  # the faults concern this sequence
CASE = dict(num_heads=4, kv_heads=2, head_dim=32, block_size=16)
DECODE = Case(name="decode", context_lens=(250, 77), **CASE)
RAGGED = Case(name="ragged", context_lens=(250, 77), query_lens=(40, 1), **CASE)


def _with_rows(inputs: Inputs, rows) -> Inputs:
    return inputs._replace(cache=KVBlocks.of_rows(inputs.cache.layout, rows))


def dropped_block(inputs: Inputs) -> Inputs:
    """Its table names a block of the other sequence in the place of its own fifth."""
    tables = inputs.block_tables.at[SEQ, 4].set(inputs.block_tables[1, 0])
    return inputs._replace(block_tables=tables)


def mask_one_short(inputs: Inputs) -> Inputs:
    return inputs._replace(context_lens=inputs.context_lens.at[SEQ].add(-1))


def mask_one_long(inputs: Inputs) -> Inputs:
    """The position past the context holds a finite row."""
    rows = jnp.nan_to_num(inputs.cache.rows(), nan=0.5)
    longer = inputs.context_lens.at[SEQ].add(1)
    return _with_rows(inputs, rows)._replace(context_lens=longer)


def swapped_k_and_v(inputs: Inputs) -> Inputs:
    rows = inputs.cache.rows()
    swapped = rows.reshape(*rows.shape[:-2], -1, 2, rows.shape[-1])[..., ::-1, :]
    return _with_rows(inputs, swapped.reshape(rows.shape))


def wrong_kv_head(inputs: Inputs) -> Inputs:
    return _with_rows(inputs, jnp.roll(inputs.cache.rows(), 2, axis=-2))


def stale_position(inputs: Inputs) -> Inputs:
    """One position of the context still holds another token's K and V."""
    rows, block = inputs.cache.rows(), inputs.block_tables[SEQ, 7]
    return _with_rows(inputs, rows.at[inputs.layer, block, 3].set(rows[1, block, 4]))


FAULTS = (
    dropped_block,
    mask_one_short,
    mask_one_long,
    swapped_k_and_v,
    wrong_kv_head,
    stale_position,
)


@pytest.fixture(scope="module", params=["xla", "cpu"])
def implementation(request):
    if request.param == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    return request.param


@pytest.fixture(scope="module", params=[DECODE, RAGGED], ids=lambda case: case.name)
def right(request, implementation):
    case = request.param
    inputs = make_inputs(case, platform="cpu")
    return case, inputs, attend(case, inputs, implementation)[0]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_exceeds_the_tolerance(right, implementation, fault):
    case, inputs, out = right
    faulty, _ = attend(case, fault(inputs), implementation)
    queries = case.query_lens[SEQ] if case.query_lens else 1
    difference = np.abs(faulty - out)[:queries].max(axis=(1, 2))
    assert difference.min() > 50 * TOLERANCE
