"""Attention on other GPUs, by one Triton kernel."""

from pallas_kernels.paged_attention.gpu_triton.ops import (
    paged_attention_gpu_triton,
    ragged_paged_attention_gpu_triton,
)

__all__ = ["paged_attention_gpu_triton", "ragged_paged_attention_gpu_triton"]
