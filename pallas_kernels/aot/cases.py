"""Shapes of real models that are compiled, by name."""

from dataclasses import dataclass
from typing import Any

ALL_DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")
QUANTIZED = ("bfloat16", "int8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """The heads of one model, and how it is served."""

    name: str
    num_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None  # of latent attention
    window: int | None = None  # of every other layer
    soft_cap: float | None = None
    has_sinks: bool = False
    block_size: int = 16
    num_seqs: int = 32
    blocks_per_seq: int = 256
    num_tokens: int = 512  # of a step with prefill
    pool_bytes: int | None = None  # else as large as its temporaries require
    dtypes: tuple[str, ...] = ("bfloat16",)  # of the pool
    subset_dtypes: tuple[str, ...] = ()  # what CI compiles

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


_LLAMA = dict(num_heads=32, kv_heads=8, head_dim=128)
_MLA = dict(num_heads=128, kv_heads=1, head_dim=576, value_dim=512)


def _block_sizes(shape: dict[str, Any], name: str, sizes: tuple[int, ...], **kwargs):
    """The same model at other block sizes, with tables for as many tokens."""
    return tuple(
        CompileCase(
            name=f"{name}_b{size}",
            block_size=size,
            blocks_per_seq=4096 // size,
            **shape,
            **kwargs,
        )
        for size in sizes
    )


CASES = {
    case.name: case
    for case in (
        CompileCase(
            name="llama3_8b",
            **_LLAMA,
            dtypes=ALL_DTYPES,
            subset_dtypes=("bfloat16", "int8"),
        ),
        *_block_sizes(_LLAMA, "llama3_8b", (1, 8, 32, 256)),
        CompileCase(name="llama3_8b_seqs256", **_LLAMA, num_seqs=256, blocks_per_seq=2048),
        CompileCase(name="llama3_8b_tokens2048", **_LLAMA, num_tokens=2048),
        CompileCase(name="llama3_8b_tokens8192", **_LLAMA, num_tokens=8192),
        CompileCase(
            name="llama3_8b_pool8gib",
            **_LLAMA,
            pool_bytes=2**33,
            dtypes=("bfloat16", "int8"),
        ),  # more than 2^31 elements
        CompileCase(
            name="gemma3_1b",
            num_heads=4,
            kv_heads=1,
            head_dim=256,
            window=512,
            dtypes=QUANTIZED,
        ),
        CompileCase(
            name="smollm_135m",
            num_heads=9,
            kv_heads=3,
            head_dim=64,
            dtypes=ALL_DTYPES,
        ),
        CompileCase(name="head_dim80", num_heads=32, kv_heads=32, head_dim=80),
        CompileCase(name="phi3_mini", num_heads=32, kv_heads=32, head_dim=96),
        CompileCase(
            name="mqa", num_heads=16, kv_heads=1, head_dim=128, dtypes=("bfloat16", "int8")
        ),
        CompileCase(
            name="deepseek_v2", **_MLA, dtypes=ALL_DTYPES, subset_dtypes=("bfloat16",)
        ),
        *_block_sizes(_MLA, "deepseek_v2", (8, 32, 256)),
        CompileCase(
            name="gpt_oss_20b",
            num_heads=64,
            kv_heads=8,
            head_dim=64,
            window=128,
            has_sinks=True,
            dtypes=QUANTIZED,
            subset_dtypes=("bfloat16",),
        ),
        CompileCase(
            name="gemma2_9b",
            num_heads=16,
            kv_heads=8,
            head_dim=256,
            window=4096,
            soft_cap=50.0,
        ),
    )
}
