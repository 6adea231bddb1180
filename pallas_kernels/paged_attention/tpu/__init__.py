"""Attention on TPU, by one Mosaic kernel."""

from pallas_kernels.paged_attention.tpu.ops import (
    paged_attention_tpu,
    ragged_paged_attention_tpu,
)

__all__ = ["paged_attention_tpu", "ragged_paged_attention_tpu"]
