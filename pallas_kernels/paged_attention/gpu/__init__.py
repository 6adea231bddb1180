"""Attention on Hopper, by one Mosaic GPU kernel."""

from pallas_kernels.paged_attention.gpu.ops import (
    paged_attention_gpu,
    ragged_paged_attention_gpu,
)

__all__ = ["paged_attention_gpu", "ragged_paged_attention_gpu"]
