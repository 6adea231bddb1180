"""Attention on CPU, by functions that Numba compiles."""

from pallas_kernels.paged_attention.cpu.ops import (
    paged_attention_cpu,
    ragged_paged_attention_cpu,
)

__all__ = ["paged_attention_cpu", "ragged_paged_attention_cpu"]
