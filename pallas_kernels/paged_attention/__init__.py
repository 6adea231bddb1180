"""Attention over block tables: one query per sequence, or ragged runs of queries."""

from pallas_kernels.paged_attention.api import (
    IMPLEMENTATIONS,
    paged_attention,
    ragged_paged_attention,
)
from pallas_kernels.paged_attention.cascade import cascade_paged_attention
from pallas_kernels.paged_attention.tiling import Tiling

__all__ = [
    "IMPLEMENTATIONS",
    "Tiling",
    "cascade_paged_attention",
    "paged_attention",
    "ragged_paged_attention",
]
