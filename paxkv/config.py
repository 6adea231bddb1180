"""Settings of an engine. Frozen and checked when made; what is derived lives elsewhere."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from paxkv.checks import (
    Check,
    flag,
    integer_in,
    keep_checked,
    named,
    number_where,
    one_of,
    optional,
)
from paxkv.policies.admission import ADMISSION_POLICIES, AdmissionPolicy
from paxkv.policies.eviction import EVICTION_POLICIES, EvictionPolicy
from paxkv.policies.naming import policy_named
from paxkv.policies.pressure import PRESSURE_POLICIES
from paxkv.policies.scheduling import SCHEDULING_POLICIES
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import MAX_SEED

AllocatorName = Literal[
    "paged",
    "contiguous_max",
    "contiguous_pow2",
    "contiguous_oracle",
    "contiguous_first_fit",
    "contiguous_compact",
    "contiguous_grow",
]
CacheDtype = Literal["float32", "bfloat16", "int8", "float8_e4m3fn"]
MatmulPrecision = Literal["highest", "default"]
LatentPrefill = Literal["absorbed", "expanded"]
Granularity = Literal["block", "token"]
Batching = Literal["iteration", "request"]
HostWrite = Literal["write_back", "write_through", "write_through_selective"]
OUTCOMES = ("completed", "cancelled", "failed", "preempted")


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
    # blocks of the layers with windows, where a model has both kinds; None: num_blocks,
    # or as many as max_num_seqs sequences can use
    num_window_blocks: int | None = None
    prefix_caching: bool = False  # requests share the K/V of equal prefixes
    granularity: str = "block"  # of sharing; "token": copies a block that matches in part
    eviction: str = "lru"  # of cached blocks: a name in EVICTION_POLICIES or a path
    deduplicate: bool = True  # of two equal blocks that requests computed, keep one
    host_blocks: int = 0  # per group: for swapped sequences and evicted cached blocks
    host_write: str = "write_back"  # when cached blocks are copied to the host
    disk_folder: str | None = None  # for blocks that leave the host
    disk_bytes: int = 2**30  # most that the folder may hold
    checksums: bool = True  # of blocks on the host and on disk
    # fault modes; results must not depend on them
    poison: bool = False  # fills blocks with NaN when they are freed and when handed out
    force_miss: bool = False  # requests find nothing in the cache
    delay_steps: int = 0  # transfers to the host land so many steps late

    def __post_init__(self):
        keep_checked(self, _CACHE_CHECKS)
        if self.prefix_caching and self.allocator != "paged":
            raise ValueError(
                f"prefix_caching needs blocks that can be shared, allocator="
                f"{self.allocator!r} has regions; use allocator='paged', or set "
                "prefix_caching=False."
            )
        if self.host_blocks and self.allocator != "paged":
            raise ValueError(
                f"host_blocks={self.host_blocks} takes single blocks, allocator="
                f"{self.allocator!r} has regions; use allocator='paged', or host_blocks=0."
            )
        if self.disk_folder is not None and not (self.host_blocks and self.prefix_caching):
            raise ValueError(
                f"disk_folder={self.disk_folder!r} takes cached blocks that leave the "
                f"host: it needs prefix_caching and host_blocks > 0, not "
                f"{self.prefix_caching} and {self.host_blocks}; set both, or leave it out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step, and what happens when the pool is full."""

    max_num_seqs: int = 64  # sequences that run at once: rows of the tables
    max_num_batched_tokens: int = 512  # tokens computed per step
    # False: a prompt is computed whole in one step, or waits; the budget must hold one
    chunked_prefill: bool = True
    mix_prefill: bool = True  # False: a step computes prompts or decodes, prompts first
    # "request": the next batch is admitted when all of the last one have ended
    batching: str = "iteration"
    watermark: float = 0.01  # share of the blocks that admission leaves free
    victim: str = "newest"  # whom to preempt: a name in VICTIM_POLICIES
    max_preemptions: int = 8  # of one request; then it is exempt
    preempt_every: int = 0  # fault injection: preempt the newest each k-th step; 0: never
    # policies: names in their modules' tables, or import paths (docs/policies.md)
    pressure: str = "preempt_recompute"  # what becomes of a victim
    admission: str = "watermark"  # how many blocks stay free
    scheduling: str = "fcfs"  # who is admitted first
    hold_shared_prefixes: bool = False  # wait for a prefix that another is computing
    # after which ends a request's blocks stay cached
    retain: tuple[str, ...] = OUTCOMES
    # measured crossover of swap_or_recompute; experiments.measure_relocation prints them
    swap_s_per_block: float | int = 0.0  # out and in again
    recompute_s_per_token: float | int = 0.0

    def __post_init__(self):
        keep_checked(self, _SCHEDULER_CHECKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs besides its requests."""

    model: str  # a checkpoint directory of this project or of Hugging Face, or a GGUF file
    model_revision: str = ""  # of the weights, where one path may hold several in turn
    seed: int = 0  # of requests that bring none
    implementation: str = "auto"  # of attention and cache writes; auto: by the device
    matmul_precision: str = "highest"
    # of latent attention: queries meet the latents, or K and V of all heads made of them,
    # which costs less from about 170 tokens of a sequence per step (`xla`, `reference`)
    latent_prefill: str = "absorbed"
    max_context: int | None = None  # tokens; None: the model's own limit
    check_invariants: bool = False  # after each step
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self):
        keep_checked(self, _ENGINE_CHECKS)


def _policy(
    offered: Mapping[str, Any], kind: str, makes: Callable[[Any], Any] | None = None
) -> Check:
    """A name that leads to a policy; `makes` tries a class of policies, or raises."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"is no name; use one of {', '.join(offered)}")
        try:
            policy = policy_named(value, offered, kind)
            if makes is not None:
                makes(policy)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot be used: {str(error).rstrip('.')}") from None
        return value

    return check


def _made(policy: Any, interface: type, *arguments: Any) -> None:
    """Raises unless calling `policy` gives an object of that interface."""
    made = policy(*arguments)
    if not isinstance(made, interface):
        raise ValueError(
            f"it gives a {type(made).__name__}, which is no {interface.__name__}; see "
            "docs/policies.md for what that has"
        )


def _folder(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise TypeError("is no path; give a folder, or None for no disk tier")
    return os.fspath(value)


def _outcomes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str | Sequence):
        raise TypeError(f"is no list of names; use some of {', '.join(OUTCOMES)}")
    names = (value,) if isinstance(value, str) else tuple(value)
    unknown = [name for name in names if name not in OUTCOMES]
    if unknown:
        raise ValueError(f"names {unknown}; use some of {', '.join(OUTCOMES)}")
    return names


# Where `LLM` has another name for a setting, the remedy says it.
_CACHE_CHECKS: Mapping[str, Check] = {
    "block_size": integer_in(1, None, "use ≥ 1 token"),
    "num_blocks": optional(
        integer_in(
            2, None, "block 0 is the null block, so a pool needs ≥ 2; raise num_blocks"
        )
    ),
    "memory_fraction": number_where(
        lambda x: 0 < x <= 1, "in (0, 1]", "it is a share (LLM: gpu_memory_utilization)"
    ),
    "dtype": one_of(get_args(CacheDtype), " (LLM: kv_cache_dtype, else dtype)"),
    "allocator": one_of(get_args(AllocatorName)),
    "shuffle_seed": optional(integer_in(0, None, "None keeps the order of addresses")),
    "num_window_blocks": optional(integer_in(2, None, "one is the null block")),
    "prefix_caching": flag,
    "granularity": one_of(get_args(Granularity)),
    "eviction": _policy(
        EVICTION_POLICIES, "eviction policy", lambda it: _made(it, EvictionPolicy)
    ),
    "deduplicate": flag,
    "host_blocks": integer_in(0, None, "0 is no host tier"),
    "disk_folder": optional(_folder),
    "host_write": one_of(get_args(HostWrite)),
    "disk_bytes": integer_in(1, None, "use ≥ 1 byte"),
    "checksums": flag,
    "poison": flag,
    "force_miss": flag,
    "delay_steps": integer_in(0, None, "0 is at once"),
}
_SCHEDULER_CHECKS: Mapping[str, Check] = {
    "max_num_seqs": integer_in(1, None, "use ≥ 1 sequence"),
    "max_num_batched_tokens": integer_in(1, None, "use ≥ 1 token"),
    "chunked_prefill": flag,
    "mix_prefill": flag,
    "batching": one_of(get_args(Batching)),
    "watermark": number_where(lambda x: 0 <= x < 1, "in [0, 1)", "it is a share"),
    "victim": _policy(VICTIM_POLICIES, "victim policy"),
    "pressure": _policy(PRESSURE_POLICIES, "pressure policy"),
    "admission": _policy(
        ADMISSION_POLICIES,
        "admission policy",
        lambda it: _made(it, AdmissionPolicy, 2, 0.0),
    ),
    "scheduling": _policy(SCHEDULING_POLICIES, "scheduling policy"),
    "hold_shared_prefixes": flag,
    "retain": _outcomes,
    "swap_s_per_block": number_where(lambda x: x >= 0, "≥ 0", "it is a time in seconds"),
    "recompute_s_per_token": number_where(lambda x: x >= 0, "≥ 0", "a time in seconds"),
    "max_preemptions": integer_in(0, None, "use ≥ 0"),
    "preempt_every": integer_in(0, None, "use ≥ 1 step, or 0 for never"),
}
_ENGINE_CHECKS: Mapping[str, Check] = {
    "seed": integer_in(0, MAX_SEED, "any of these will do"),
    "matmul_precision": one_of(get_args(MatmulPrecision)),
    "latent_prefill": one_of(get_args(LatentPrefill)),
    "max_context": optional(
        integer_in(2, None, "a prompt and an output need ≥ 2 tokens (LLM: max_model_len)")
    ),
}


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
      TypeError: `pool_positions` is no integer.
    """
    cache_config = CacheConfig(**cache)
    positions = integer_in(0, None, "0 sizes the pool by free memory")
    if named("pool_positions", pool_positions, positions):
        num_blocks = pool_positions // cache_config.block_size
        if num_blocks < 1:
            raise ValueError(
                f"{pool_positions=} holds no block of block_size="
                f"{cache_config.block_size} tokens; raise it."
            )
        with_null_block = num_blocks + 1
        cache_config = replace(cache_config, num_blocks=with_null_block)
    return EngineConfig(
        **engine, cache=cache_config, scheduler=SchedulerConfig(**scheduler)
    )
