"""The device pools: one `KVBlocks` per group of layers, allocated once (DESIGN §4).

A plain model has one group. One with windowed and unbounded layers has one for each kind,
with its own blocks and tables; all groups hold equally many blocks.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from absl import logging

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import KVLayout, kv_layout
from paxkv.config import CacheConfig
from paxkv.models.cache_groups import layers_per_group
from paxkv.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Shape of the groups of a cache."""

    layout: KVLayout
    layers_per_group: tuple[int, ...]
    num_blocks: int  # N of each group, the null block included
    block_size: int  # tokens

    @property
    def bytes_per_block(self) -> int:
        """K and V of all layers, padding of the physical layout and scales included."""
        return sum(self.layers_per_group) * self.layout.bytes_per_block(self.block_size)

    @property
    def bytes_per_token(self) -> float:
        """Whole, but for scales that share padding among the tokens of a block."""
        return self.bytes_per_block / self.block_size

    @property
    def nbytes(self) -> int:
        """Of the pools, the null blocks included."""
        return self.bytes_per_block * self.num_blocks

    def allocate(self) -> tuple[KVBlocks, ...]:
        """The zero-filled pools, one per group."""
        return tuple(
            make_cache(
                self.layout,
                num_layers=num_layers,
                num_blocks=self.num_blocks,
                block_size=self.block_size,
            )
            for num_layers in self.layers_per_group
        )


def plan_cache(
    model: ModelConfig,
    cache: CacheConfig,
    *,
    max_num_seqs: int,
    max_context: int,
    platform: str,
    free_bytes: int,
) -> CachePlan:
    """Chooses the layout and, unless `cache.num_blocks` fixes it, the pool's size.

    A pool sizes itself to `memory_fraction` of `free_bytes`, but never larger than
    `max_num_seqs` sequences of `max_context` tokens can fill.

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
        num_blocks=cache.num_blocks or 0,
        block_size=cache.block_size,
    )
    if cache.num_blocks is not None:
        _check_fits(plan, free_bytes)
        return plan
    bytes_per_block = plan.bytes_per_block
    budget_bytes = int(cache.memory_fraction * free_bytes)
    fit = budget_bytes // bytes_per_block
    useful = max_num_seqs * -(-max_context // cache.block_size) + 1
    if fit < 2:
        raise ValueError(
            f"memory_fraction={cache.memory_fraction} of {free_bytes:,} free bytes holds "
            f"{fit} blocks of {bytes_per_block:,} bytes; need ≥ 2 (one is the null "
            "block). Raise the fraction, or lower block_size."
        )
    plan = replace(plan, num_blocks=min(fit, useful))
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
        f"{useful:,}",
        max_num_seqs,
        max_context,
    )
    return plan


def _check_fits(plan: CachePlan, free_bytes: int) -> None:
    if plan.nbytes > free_bytes:
        most = free_bytes // plan.bytes_per_block
        raise ValueError(
            f"num_blocks={plan.num_blocks:,} of block_size={plan.block_size} take "
            f"{plan.nbytes:,} bytes, {free_bytes:,} are free; use at most {most:,} blocks, "
            "or None to size the pool by memory."
        )
