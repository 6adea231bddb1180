"""Runs an op of `cases`, compiled, and cuts off the padded rows."""

import functools
from typing import Any

import jax
import numpy as np

from pallas_kernels.paged_attention import paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention.cases import Case, Inputs
from pallas_kernels.paged_attention.xla import (
    paged_attention_xla,
    ragged_paged_attention_xla,
)

TOLERANCE = 2e-5  # float32: sums of up to 600 products of normal numbers


@functools.cache
def _compiled(op, **static: Any):
    return jax.jit(functools.partial(op, **static))


def attend(case: Case, inputs: Inputs, implementation: str, **changed: Any):
    """Output and lse of the op, rows of queries only. Padded rows must be finite."""
    op = ragged_paged_attention if inputs.num_seqs is not None else paged_attention
    options = case.options() | changed
    arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}
    static = {name: x for name, x in options.items() if name not in arrays}
    run = _compiled(op, **static, return_lse=True, implementation=implementation)
    return _rows(case, *run(*inputs.arguments(), **arrays))


def attend_xla(case: Case, inputs: Inputs, run_tiles):
    """As `attend`, with the tiles run by `run_tiles` whatever the platform is."""
    is_ragged = inputs.num_seqs is not None
    op = ragged_paged_attention_xla if is_ragged else paged_attention_xla
    run = jax.jit(functools.partial(op, **case.options(), tiling=None, run=run_tiles))
    return _rows(case, *run(*inputs.arguments()))


def _rows(case: Case, out: jax.Array, lse: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    assert np.isfinite(out).all()
    assert not np.isnan(lse).any()
    count = sum(case.query_lens) if case.query_lens else len(case.context_lens)
    return np.asarray(out[:count]), np.asarray(lse[:count])
