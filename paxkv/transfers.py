"""Executes the moves of a plan: copies within the pools, and ways to and from the tiers.

Of the moves that can take effect at once (`paxkv.move_batches`), one call of a compiled
program moves all blocks in all layers. Lists are padded to powers of two with the null
block, so that few programs exist.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.move_blocks import copy_blocks, gather_blocks, scatter_blocks
from paxkv.block_bytes import bytes_of_block, from_payload, start_to_host, to_payload
from paxkv.block_pool import NULL_BLOCK
from paxkv.move_batches import batches
from paxkv.move_checks import GroupSize, check_moves, slots_read_first
from paxkv.moves import CopyBlock, Load, Move, Poison, Spill, SwapIn, SwapOut
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_store import CorruptBlock, HostStore

MIN_BLOCKS_PER_CALL = 8
MAX_BLOCKS_PER_CALL = 256  # a call holds its blocks twice

copy_in_place = jax.jit(
    copy_blocks, static_argnames="implementation", donate_argnames="cache"
)
gather = jax.jit(gather_blocks, static_argnames="implementation")
scatter_in_place = jax.jit(
    scatter_blocks, static_argnames="implementation", donate_argnames="cache"
)


@partial(jax.jit, donate_argnames="cache")
def poison_in_place(cache: KVBlocks, blocks: Int32[Array, "n"]) -> KVBlocks:
    """Fills blocks, all layers, with NaN or the largest integer; scales with NaN."""
    layout = cache.layout
    is_integer = jnp.issubdtype(layout.dtype, jnp.integer)
    worst = np.array(jnp.iinfo(layout.dtype).max if is_integer else np.nan, layout.dtype)
    kv = cache.kv.at[:, blocks].set(worst.view(layout.storage_dtype))
    scales = cache.scales
    if scales is not None:
        scales = scales.at[:, blocks].set(jnp.nan)
    return KVBlocks(kv=kv, scales=scales, layout=layout)


@dataclass(slots=True, kw_only=True)
class TransferCounts:
    """What moved so far. Bytes are of blocks: padded lists do not count."""

    copied_blocks: int = 0
    swapped_out_blocks: int = 0
    swapped_out_bytes: int = 0
    swapped_in_blocks: int = 0
    swapped_in_bytes: int = 0
    spilled_blocks: int = 0
    spilled_bytes: int = 0
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    poisoned_blocks: int = 0
    corrupt_blocks: int = 0  # of the host store, not spilled for that
    device_calls: int = 0  # of compiled programs, by all moves
    swap_calls: int = 0  # of these, by swaps and loads

    @property
    def calls_per_swapped_block(self) -> float:
        """Loaded blocks count as well; 0 if there were none."""
        blocks = self.swapped_out_blocks + self.swapped_in_blocks + self.loaded_blocks
        return self.swap_calls / blocks if blocks else 0.0


class _InFlight(NamedTuple):
    """Blocks between the pool and their host slots."""

    due: int  # the run at whose end they land
    group: int
    host_slots: list[int]
    moved: KVBlocks


class Transfers:
    """Moves blocks; holds the stores, and what is on its way to them."""

    def __init__(
        self,
        implementation: str,
        host_store: HostStore | None,
        disk_store: DiskStore | None,
        *,
        delay_steps: int = 0,
    ):
        """The stores may be None where no move names them.

        Args:
          implementation: of `pallas_kernels.move_blocks`.
          delay_steps: fault mode: swapped blocks land in the host store at the end of the
            run that comes so many after theirs, unless a move needs them before.
        """
        if delay_steps < 0:
            raise ValueError(f"{delay_steps=} must be at least 0; 0 delays nothing.")
        self.implementation = implementation
        self.host_store = host_store
        self.disk_store = disk_store
        self.delay_steps = delay_steps
        self.counts = TransferCounts()
        self.programs: set[tuple] = set()
        self._in_flight: deque[_InFlight] = deque()
        self._num_runs = 0

    @property
    def num_programs(self) -> int:
        """Compiled programs that the moves have used."""
        return len(self.programs)

    def run(
        self, cache: tuple[KVBlocks, ...], moves: Sequence[Move]
    ) -> tuple[KVBlocks, ...]:
        """The cache after all moves, with the effect of one after the other.

        `cache` is donated, unless this raises before anything has moved. Call it for
        steps without moves as well: swapped blocks land by its calls.

        Raises:
          CorruptBlock: the host store has wrong bytes for a `SwapIn`; nothing has moved.
          ValueError: a move that these pools and stores cannot do; nothing has moved.
        """
        if moves:
            self._check(cache, moves)
        run_batch: dict[type, Callable[..., KVBlocks]] = {
            CopyBlock: self._copy,
            SwapOut: self._swap_out,
            SwapIn: self._swap_in,
            Spill: self._spill,
            Load: self._load,
            Poison: self._poison,
        }
        pools = list(cache)
        for batch in batches(moves, MAX_BLOCKS_PER_CALL):
            run = run_batch[type(batch.moves[0])]
            pools[batch.group] = run(pools[batch.group], batch.moves)
        self._land_due(keep=0)
        self._num_runs += 1
        return tuple(pools)

    def flush(self) -> None:
        """Waits until all swapped blocks are in the host store."""
        while self._in_flight:
            self._land_first()

    def _check(self, cache: tuple[KVBlocks, ...], moves: Sequence[Move]) -> None:
        """Finds what is wrong while nothing has moved: later, the cache would be lost."""
        groups = [
            GroupSize(num_blocks=pool.num_blocks, bytes_per_block=bytes_of_block(pool))
            for pool in cache
        ]
        check_moves(moves, groups, self.host_store, self.disk_store)
        for group, host_slot in slots_read_first(moves):
            self._land_slots(group, [host_slot])
            if self._host.is_corrupt(group, host_slot):
                raise CorruptBlock(
                    f"{host_slot=} of {group=} does not match its checksum; discard it and "
                    "compute the block again."
                )

    @property
    def _host(self) -> HostStore:
        """Where `check_moves` has found that moves need it."""
        assert self.host_store is not None, "a move to or from no host store was let pass"
        return self.host_store

    def _copy(self, pool: KVBlocks, moves: Sequence[CopyBlock]) -> KVBlocks:
        src, dst = (_padded([getattr(m, end) for m in moves]) for end in ("src", "dst"))
        self.counts.copied_blocks += len(moves)
        self._count_call("copy", pool, len(src))
        return copy_in_place(
            pool, *jax.device_put((src, dst)), implementation=self.implementation
        )

    def _swap_out(self, pool: KVBlocks, moves: Sequence[SwapOut]) -> KVBlocks:
        blocks = _padded([move.block for move in moves])
        self.counts.swapped_out_blocks += len(moves)
        self.counts.swapped_out_bytes += len(moves) * bytes_of_block(pool)
        self._count_call("gather", pool, len(blocks), is_swap=True)
        moved = gather(pool, jax.device_put(blocks), implementation=self.implementation)
        self._in_flight.append(
            _InFlight(
                due=self._num_runs + self.delay_steps,
                group=moves[0].group,
                host_slots=[move.host_slot for move in moves],
                moved=start_to_host(moved),
            )
        )
        self._land_due(keep=1)  # one call's blocks travel while the next is gathered
        return pool

    def _swap_in(self, pool: KVBlocks, moves: Sequence[SwapIn]) -> KVBlocks:
        group, host_slots = moves[0].group, [move.host_slot for move in moves]
        self._land_slots(group, host_slots)
        payload = self._host.read(group, host_slots, verified=True)
        self.counts.swapped_in_blocks += len(moves)
        self.counts.swapped_in_bytes += payload.nbytes
        return self._fill(pool, [move.block for move in moves], payload)

    def _load(self, pool: KVBlocks, moves: Sequence[Load]) -> KVBlocks:
        payload = np.stack([np.frombuffer(move.payload, np.uint8) for move in moves])
        self.counts.loaded_blocks += len(moves)
        self.counts.loaded_bytes += payload.nbytes
        return self._fill(pool, [move.block for move in moves], payload)

    def _fill(
        self, pool: KVBlocks, blocks: list[int], payload: UInt8[np.ndarray, "n bytes"]
    ) -> KVBlocks:
        index = _padded(blocks)
        self._count_call("scatter", pool, len(index), is_swap=True)
        moved = from_payload(payload, pool, len(index))
        return scatter_in_place(
            pool, jax.device_put(index), moved, implementation=self.implementation
        )

    def _spill(self, pool: KVBlocks, moves: Sequence[Spill]) -> KVBlocks:
        assert self.disk_store is not None, "a spill to no disk store was let pass"
        for move in moves:
            self._land_slots(move.group, [move.host_slot])
            try:
                payload = self._host.read(move.group, [move.host_slot])
            except CorruptBlock:
                self.counts.corrupt_blocks += 1
                continue
            self.disk_store.put(move.digest, move.group, payload.tobytes())
            self.counts.spilled_blocks += 1
            self.counts.spilled_bytes += payload.nbytes
        return pool

    def _poison(self, pool: KVBlocks, moves: Sequence[Poison]) -> KVBlocks:
        blocks = [block for move in moves for block in move.blocks]
        self.counts.poisoned_blocks += len(blocks)
        for start in range(0, len(blocks), MAX_BLOCKS_PER_CALL):
            some = blocks[start : start + MAX_BLOCKS_PER_CALL]
            index = _padded(some, pad=some[0])  # what the null block holds is not changed
            self._count_call("poison", pool, len(index))
            pool = poison_in_place(pool, jax.device_put(index))
        return pool

    def _land_slots(self, group: int, host_slots: Sequence[int]) -> None:
        """Waits for blocks on their way to these slots, and for all before them."""
        wanted = set(host_slots)
        while any(f.group == group and wanted & {*f.host_slots} for f in self._in_flight):
            self._land_first()

    def _land_due(self, keep: int) -> None:
        while len(self._in_flight) > keep and self._in_flight[0].due <= self._num_runs:
            self._land_first()

    def _land_first(self) -> None:
        flight = self._in_flight.popleft()
        payload = to_payload(flight.moved, len(flight.host_slots))
        self._host.write(flight.group, flight.host_slots, payload)

    def _count_call(
        self, name: str, pool: KVBlocks, num_blocks: int, is_swap: bool = False
    ) -> None:
        self.counts.device_calls += 1
        self.counts.swap_calls += is_swap
        self.programs.add((name, pool.layout, pool.kv.shape, num_blocks))


def _padded(blocks: Sequence[int], pad: int = NULL_BLOCK) -> Int32[np.ndarray, "n"]:
    """At least MIN_BLOCKS_PER_CALL, a power of two."""
    length = max(MIN_BLOCKS_PER_CALL, 1 << (len(blocks) - 1).bit_length())
    padded = np.full(length, pad, np.int32)
    padded[: len(blocks)] = blocks
    return padded
