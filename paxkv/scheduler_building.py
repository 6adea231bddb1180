"""Joins tables, allocator, tiers and scheduler; the same for a device and in simulation."""

from collections.abc import Collection, Sequence

from paxkv.allocators import make_allocator
from paxkv.allocators.paged import PagedAllocator
from paxkv.cache_keys import Part
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.events import Listener
from paxkv.journal import Journal
from paxkv.policies.pressure import SWAPPING
from paxkv.request_options import Adapter
from paxkv.scheduler import Scheduler
from paxkv.sequence_tables import SequenceTables
from paxkv.swapping import Swapper
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_store import HostStore
from paxkv.tiers.host_tier import HostTier


def build_scheduler(
    cache: CacheConfig,
    config: SchedulerConfig,
    *,
    num_blocks: Sequence[int],
    max_context: int,
    vocab_size: int,
    windows: Sequence[int | None] = (None,),
    eos_token_ids: Collection[int] = (),
    check_invariants: bool = False,
    model_key: tuple[Part, ...] = (),
    disk: DiskStore | None = None,
    host_store: HostStore | None = None,
    adapters: Collection[Adapter] = (),
    listener: Listener | None = None,
) -> Scheduler:
    """A scheduler over free pools.

    Args:
      num_blocks: per cache group, the null block included.
      windows: per cache group, tokens that a position sees; None: all.
      model_key: what of the engine K/V depends on.
      host_store: where `Transfers` puts blocks that leave the device.
      adapters: that requests may name.
      listener: hears of every event of blocks and requests.

    Raises:
      ValueError: a pressure policy that swaps has regions instead of blocks, too small a
        host tier, or no costs to compare; or a step cannot hold a prompt that is not cut.
    """
    if not config.chunked_prefill and config.max_num_batched_tokens < max_context:
        raise ValueError(
            f"chunked_prefill=False computes up to {max_context=} tokens in one step, and "
            f"max_num_batched_tokens={config.max_num_batched_tokens}; raise it to ≥ "
            f"{max_context}, lower max_context, or set chunked_prefill=True."
        )
    journal = Journal(listener, poisons=cache.poison)
    tables = SequenceTables(
        max_num_seqs=config.max_num_seqs,
        max_context=max_context,
        blocks_per_sequence=(-(-max_context // cache.block_size),) * len(num_blocks),
    )
    host = None
    if cache.host_blocks:
        host = HostTier(
            cache.host_blocks,
            len(num_blocks),
            journal,
            write_policy=cache.host_write,
            spills=disk is not None,
            **({} if host_store is None else {"is_corrupt": host_store.is_corrupt}),
        )
    allocator = make_allocator(
        cache,
        num_blocks=num_blocks,
        tables=tables,
        max_context=max_context,
        windows=windows,
        max_new_tokens=config.max_num_batched_tokens,
        model_key=model_key,
        journal=journal,
        host=host,
        disk=disk,
    )
    swapper = None
    if config.pressure in SWAPPING:
        _check_swap_space(cache, config, max_context, max(num_blocks))
    if host is not None and isinstance(allocator, PagedAllocator):
        swapper = Swapper(allocator, tables, host)
    return Scheduler(
        config,
        allocator,
        tables,
        max_context=max_context,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        check_invariants=check_invariants,
        swapper=swapper,
        adapters=adapters,
    )


def _check_swap_space(
    cache: CacheConfig, config: SchedulerConfig, max_context: int, num_blocks: int
) -> None:
    if cache.allocator != "paged":
        raise ValueError(
            f"pressure={config.pressure!r} moves blocks, {cache.allocator=} has regions; "
            "use allocator='paged', or pressure='preempt_recompute'."
        )
    longest = min(-(-max_context // cache.block_size), num_blocks - 1)
    if cache.host_blocks < longest:
        raise ValueError(
            f"host_blocks={cache.host_blocks} cannot hold one sequence of "
            f"{max_context=} tokens ({longest} blocks of {cache.block_size}), which "
            f"pressure={config.pressure!r} needs; raise host_blocks to ≥ {longest}."
        )
    costs = config.swap_s_per_block, config.recompute_s_per_token
    if config.pressure == "swap_or_recompute" and not any(costs):
        raise ValueError(
            "pressure='swap_or_recompute' compares two costs, and swap_s_per_block and "
            f"recompute_s_per_token are {costs[0]:g} and {costs[1]:g}; set both to what "
            "`python -m experiments.measure_relocation` prints on this device."
        )
