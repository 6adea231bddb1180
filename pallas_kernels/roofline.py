"""What attention must at least move and compute, and the time that a chip needs for it.

A kernel that reaches the roofline (Williams et al. 2009) cannot be made faster without
moving or computing less. Counts are of the op, not of an implementation: K and V of each
visible block once per sequence, in whole blocks and with the padding that the platform's
layout has; queries and results once; two operations per product of a visible pair.

    python -m pallas_kernels.roofline    # the table of docs/kernels.md, microseconds
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.aot.cases import CASES, CompileCase
from pallas_kernels.aot.targets import A100, B200, H100, GpuChip
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Published peaks of one chip."""

    platform: str  # gpu or tpu
    bytes_per_s: float  # of its memory
    flops_per_s: float  # dense bfloat16 products


def _gpu(chip: GpuChip, flops_per_s: float) -> Chip:
    return Chip(
        platform="gpu", bytes_per_s=float(chip.memory_bytes_per_s), flops_per_s=flops_per_s
    )


# Vendors' data sheets: Google Cloud's pages of each TPU, NVIDIA's of each GPU (SXM).
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(platform="tpu", bytes_per_s=1228e9, flops_per_s=275e12),
    "v5e": Chip(platform="tpu", bytes_per_s=819e9, flops_per_s=197e12),
    "v5p": Chip(platform="tpu", bytes_per_s=2765e9, flops_per_s=459e12),
    "v6e": Chip(platform="tpu", bytes_per_s=1640e9, flops_per_s=918e12),
    "a100": _gpu(A100, 312e12),
    "h100": _gpu(H100, 989e12),
    "b200": _gpu(B200, 2250e12),
}


MODELS = ("llama3_8b", "gemma3_1b", "smollm_135m", "deepseek_v2", "gpt_oss_20b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one call of an op, in one layer."""

    kv_bytes: int  # scales included
    other_bytes: int  # queries, results, table entries
    flops: int

    def seconds(self, chip: Chip) -> float:
        """The longer of moving and computing."""
        moving = (self.kv_bytes + self.other_bytes) / chip.bytes_per_s
        return max(moving, self.flops / chip.flops_per_s)


def attention_work(case: Case, *, dtype: Any, q_dtype: Any, platform: str) -> Work:
    """Counts of a named case; contexts of length 0 cost nothing but their result."""
    layout = kv_layout(case.kv_heads, case.head_dim, dtype, platform, case.value_dim)
    bytes_per_block = layout.bytes_per_block(case.block_size)
    num_blocks = num_pairs = 0
    query_lens = case.query_lens or tuple(min(1, n) for n in case.context_lens)
    for context, queries in zip(case.context_lens, query_lens, strict=True):
        positions = np.arange(context - queries, context)
        first_seen = np.zeros_like(positions)
        if case.window is not None:
            first_seen = np.maximum(positions - case.window + 1, 0)
        if case.chunk_size is not None:
            chunk_starts = positions - positions % case.chunk_size
            first_seen = np.maximum(first_seen, chunk_starts)
        num_pairs += int((positions - first_seen + 1).sum())
        if queries:
            first_block = int(first_seen[0]) // case.block_size
            num_blocks += -(-context // case.block_size) - first_block
    num_queries = sum(case.query_lens or (1,) * len(case.context_lens))
    row = layout.head_dim + layout.value_dim
    return Work(
        kv_bytes=num_blocks * bytes_per_block,
        other_bytes=num_queries * case.num_heads * row * np.dtype(q_dtype).itemsize
        + 4 * num_blocks,
        flops=2 * num_pairs * case.num_heads * row,
    )


def decode_case(case: CompileCase) -> Case:
    """A decode step of a model, its tables full."""
    return Case(
        name=case.name,
        num_heads=case.num_heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        value_dim=case.value_dim,
        block_size=case.block_size,
        context_lens=(case.blocks_per_seq * case.block_size,) * case.num_seqs,
        window=case.window,
    )


def prefill_case(case: CompileCase) -> Case:
    """A prompt of the step's tokens, without a context before it."""
    decode = decode_case(case)
    tokens = case.num_tokens
    return dataclasses.replace(decode, context_lens=(tokens,), query_lens=(tokens,))


def table() -> str:
    """Markdown: bytes, operations and the roofline time of each model and chip."""
    lines = [
        "| model | op | pool | KV MB, gpu / tpu | GFLOP | " + " | ".join(CHIPS) + " |",
        "|---|---|---|---|---|" + "---|" * len(CHIPS),
    ]
    for name in MODELS:
        case = CASES[name]
        for op, shape in (("decode", decode_case(case)), ("prefill", prefill_case(case))):
            for dtype in ("bfloat16", "int8") if op == "decode" else ("bfloat16",):
                options = dict(dtype=dtype, q_dtype="bfloat16")
                work = {
                    platform: attention_work(shape, **options, platform=platform)
                    for platform in ("gpu", "tpu")
                }
                megabytes = " / ".join(f"{w.kv_bytes / 1e6:,.1f}" for w in work.values())
                times = (
                    f"{1e6 * work[chip.platform].seconds(chip):,.1f}"
                    for chip in CHIPS.values()
                )
                lines.append(
                    f"| {name} | {op} | {dtype} | {megabytes} | "
                    f"{work['gpu'].flops / 1e9:,.1f} | {' | '.join(times)} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
