"""The device pools: one `KVBlocks` per group of layers, allocated once (DESIGN §4).

A plain model has one group. One with windowed and unbounded layers has one for each kind,
with its own blocks and tables; a windowed group needs no more blocks than windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
from absl import logging

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import KVLayout, kv_layout
from paxkv.config import CacheConfig
from paxkv.models.cache_groups import group_windows, layers_per_group
from paxkv.models.config import ModelConfig
from paxkv.sequence_tables import most_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Shape of the groups of a cache."""

    layout: KVLayout
    layers_per_group: tuple[int, ...]
    blocks_per_group: tuple[int, ...]  # N, the null block included
    block_size: int  # tokens

    @property
    def num_blocks(self) -> int:
        """Of the first group, whose layers see all positions unless none do."""
        return self.blocks_per_group[0]

    @property
    def group_bytes_per_block(self) -> tuple[int, ...]:
        """K and V of a group's layers, padding of the physical layout and scales
        included."""
        per_layer = self.layout.bytes_per_block(self.block_size)
        return tuple(num_layers * per_layer for num_layers in self.layers_per_group)

    @property
    def bytes_per_block(self) -> int:
        """Of a block in every group."""
        return sum(self.group_bytes_per_block)

    @property
    def bytes_per_token(self) -> float:
        """Whole, but for scales that share padding among the tokens of a block."""
        return self.bytes_per_block / self.block_size

    @property
    def nbytes(self) -> int:
        """Of the pools, the null blocks included."""
        return _nbytes(self.group_bytes_per_block, self.blocks_per_group)

    @property
    def saved_bytes(self) -> int:
        """By windowed groups that have fewer blocks than the first."""
        return self.bytes_per_block * self.num_blocks - self.nbytes

    def allocate(self) -> tuple[KVBlocks, ...]:
        """The zero-filled pools, one per group."""
        return tuple(
            make_cache(
                self.layout,
                num_layers=num_layers,
                num_blocks=num_blocks,
                block_size=self.block_size,
            )
            for num_layers, num_blocks in zip(
                self.layers_per_group, self.blocks_per_group, strict=True
            )
        )


def _nbytes(bytes_per_block: Sequence[int], num_blocks: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(bytes_per_block, num_blocks, strict=True))


def plan_cache(
    model: ModelConfig,
    cache: CacheConfig,
    *,
    max_num_seqs: int,
    max_context: int,
    max_new_tokens: int,
    platform: str,
    free_bytes: int,
) -> CachePlan:
    """Chooses the layout and, unless `cache.num_blocks` fixes it, the pool's size.

    A pool sizes itself to `memory_fraction` of `free_bytes`, but never larger than
    `max_num_seqs` sequences of `max_context` tokens can fill; where layers have windows,
    than they can fill with a window and `max_new_tokens` of one step.

    Raises:
      ValueError: the pool, or not even one block, fits into the free memory.
    """
    dtype = jnp.dtype(cache.dtype)
    layout = kv_layout(
        model.num_kv_heads,
        model.head_dim,
        dtype,
        platform,
        value_dim=None if model.latent is None else model.latent.kv_rank,
    )
    plan = CachePlan(
        layout=layout,
        layers_per_group=layers_per_group(model),
        blocks_per_group=(0,) * len(layers_per_group(model)),
        block_size=cache.block_size,
    )
    useful = [
        max_num_seqs * blocks + 1
        for blocks in _blocks_per_sequence(model, cache, max_context, max_new_tokens)
    ]
    if cache.num_blocks is not None:
        plan = replace(plan, blocks_per_group=_within(cache.num_blocks, useful, cache))
        _check_fits(plan, free_bytes)
        return plan
    bytes_per_block = plan.bytes_per_block
    budget_bytes = int(cache.memory_fraction * free_bytes)
    fit = budget_bytes // bytes_per_block
    if fit < 2:
        raise ValueError(
            f"memory_fraction={cache.memory_fraction} of {free_bytes:,} free bytes holds "
            f"{fit} blocks of {bytes_per_block:,} bytes; need ≥ 2 (one is the null "
            "block). Raise the fraction, or lower block_size."
        )
    # what windowed groups do not need goes to the first
    others = _within(fit, useful, cache)[1:]
    taken = _nbytes(plan.group_bytes_per_block[1:], others)
    fit = max((budget_bytes - taken) // plan.group_bytes_per_block[0], 2)
    plan = replace(plan, blocks_per_group=(min(fit, useful[0]), *others))
    logging.info(
        "pool: %s blocks of %d tokens (%s bytes each, %.1f MB in all); %s fit into "
        "%.0f %% of %.1f GB free, %s would serve %d sequences of %d tokens",
        f"{plan.num_blocks:,}",
        cache.block_size,
        f"{bytes_per_block:,}",
        plan.nbytes / 1e6,
        f"{fit:,}",
        100 * cache.memory_fraction,
        free_bytes / 1e9,
        f"{useful[0]:,}",
        max_num_seqs,
        max_context,
    )
    return plan


def _blocks_per_sequence(
    model: ModelConfig, cache: CacheConfig, max_context: int, max_new_tokens: int
) -> list[int]:
    """Per group, blocks that one sequence holds at most (`PagedAllocator`)."""
    is_paged = cache.allocator == "paged"
    return [
        most_blocks(
            max_context, cache.block_size, window if is_paged else None, max_new_tokens
        )
        for window in group_windows(model)
    ]


def _within(num_blocks: int, useful: list[int], cache: CacheConfig) -> tuple[int, ...]:
    """`num_blocks` for the first group; windowed ones have no more than they can use."""
    if cache.num_window_blocks is not None:
        others = [cache.num_window_blocks] * (len(useful) - 1)
    elif cache.allocator == "paged":
        others = [min(num_blocks, most) for most in useful[1:]]
    else:
        others = [num_blocks] * (len(useful) - 1)
    return (num_blocks, *others)


def _check_fits(plan: CachePlan, free_bytes: int) -> None:
    if plan.nbytes > free_bytes:
        most = free_bytes // plan.bytes_per_block
        raise ValueError(
            f"num_blocks={plan.num_blocks:,} of block_size={plan.block_size} take "
            f"{plan.nbytes:,} bytes, {free_bytes:,} are free; use at most {most:,} blocks, "
            "or None to size the pool by memory."
        )
