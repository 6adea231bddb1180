"""Settings of an engine. Frozen and checked when made; what is derived lives elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from paxkv.policies.victim import VICTIM_POLICIES

AllocatorName = Literal["paged", "contiguous_max", "contiguous_pow2", "contiguous_oracle"]
CacheDtype = Literal["float32", "bfloat16", "float16"]
MatmulPrecision = Literal["highest", "default"]


def _require(holds: bool, setting: str, rule: str) -> None:
    if not holds:
        raise ValueError(f"{setting} is refused: {rule}.")


def _require_one_of(name: str, value: str, offered: tuple[str, ...]) -> None:
    _require(value in offered, f"{name}={value!r}", f"use one of {', '.join(offered)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV pool and how it is given to sequences."""

    block_size: int = 16  # tokens
    num_blocks: int | None = None  # the null block included; None: from memory_fraction
    memory_fraction: float = 0.9  # of the device memory that is free at the start
    dtype: str = "float32"
    allocator: str = "paged"
    # order in which free blocks (or a buddy arena's chunks) are first handed out; None:
    # by address. Results must not depend on it.
    shuffle_seed: int | None = None

    def __post_init__(self):
        _require(self.block_size >= 1, f"block_size={self.block_size}", "use ≥ 1 token")
        _require(
            self.num_blocks is None or self.num_blocks >= 2,
            f"num_blocks={self.num_blocks}",
            "block 0 is the null block, so a pool needs ≥ 2; raise num_blocks",
        )
        _require(
            0 < self.memory_fraction <= 1,
            f"memory_fraction={self.memory_fraction}",
            "use a share in (0, 1]",
        )
        _require_one_of("dtype", self.dtype, get_args(CacheDtype))
        _require_one_of("allocator", self.allocator, get_args(AllocatorName))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step, and what happens when the pool is full."""

    max_num_seqs: int = 64  # sequences that run at once: rows of the tables
    max_num_batched_tokens: int = 512  # tokens computed per step
    watermark: float = 0.01  # share of the blocks that admission leaves free
    victim: str = "newest"  # whom to preempt: a name in VICTIM_POLICIES
    max_preemptions: int = 8  # of one request; then it is exempt
    preempt_every: int = 0  # fault injection: preempt the newest each k-th step; 0: never

    def __post_init__(self):
        _require(
            self.max_num_seqs >= 1,
            f"max_num_seqs={self.max_num_seqs}",
            "use ≥ 1 sequence",
        )
        _require(
            self.max_num_batched_tokens >= 1,
            f"max_num_batched_tokens={self.max_num_batched_tokens}",
            "use ≥ 1 token",
        )
        _require(
            0 <= self.watermark < 1,
            f"watermark={self.watermark}",
            "use a share in [0, 1)",
        )
        _require_one_of("victim", self.victim, tuple(VICTIM_POLICIES))
        _require(
            self.max_preemptions >= 0,
            f"max_preemptions={self.max_preemptions}",
            "use ≥ 0",
        )
        _require(
            self.preempt_every >= 0,
            f"preempt_every={self.preempt_every}",
            "use ≥ 1 step, or 0 for never",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs besides its requests."""

    model: str  # a checkpoint directory of this project or of Hugging Face, or a GGUF file
    seed: int = 0  # of requests that bring none
    implementation: str = "auto"  # of attention and cache writes; auto: by the device
    matmul_precision: str = "highest"
    max_context: int | None = None  # tokens; None: the model's own limit
    check_invariants: bool = False  # after each step
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self):
        _require(
            self.max_context is None or self.max_context >= 2,
            f"max_context={self.max_context}",
            "a prompt and an output need ≥ 2 tokens",
        )
        _require_one_of(
            "matmul_precision", self.matmul_precision, get_args(MatmulPrecision)
        )


def make_engine_config(
    *,
    engine: Mapping[str, Any],
    cache: Mapping[str, Any],
    scheduler: Mapping[str, Any],
    pool_positions: int,
) -> EngineConfig:
    """Joins the subtrees of an experiment's config; their keys are the fields' names.

    Args:
      pool_positions: usable positions of the pool, rounded down to whole blocks; 0: as
        many as `cache["memory_fraction"]` of the device's free memory holds.

    Raises:
      ValueError: a setting is out of range, or the pool cannot hold one block.
    """
    cache_config = CacheConfig(**cache)
    if pool_positions:
        num_blocks = pool_positions // cache_config.block_size
        _require(
            num_blocks >= 1,
            f"pool_positions={pool_positions}",
            f"one block takes block_size={cache_config.block_size} tokens; raise it",
        )
        with_null_block = num_blocks + 1
        cache_config = replace(cache_config, num_blocks=with_null_block)
    return EngineConfig(
        **engine, cache=cache_config, scheduler=SchedulerConfig(**scheduler)
    )
