"""The state of every block over a run's steps, rebuilt from its events and checked.

Who owns a block follows from these kinds alone:

    ALLOCATE  free -> owned by the request
    SHARE     owned or cached -> one more owner
    RELEASE   owned by n ≥ 2 -> by n - 1
    FREE      owned by one, without a key -> free
    RETAIN    owned by one, with a key -> cached
    CACHE     owned, without a key -> the same, with a key
    EVICT     cached -> free; owned, with a key (its prefix was dropped) -> without one

An owner is a sequence: a request and the index of its sample. Where events leave the index
out, a request of several sequences owns a block several times. FREE and RETAIN may leave
out the request, there is but one owner. All other kinds leave ownership alone; of those
that name blocks it is checked that the blocks exist, and that what they write has an owner.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from paxkv.block_pool import NULL_BLOCK
from paxkv.events import Event, EventKind

Owner = tuple[int, int]  # request id, sample index


class BlockState(enum.IntEnum):
    """Owned and shared blocks may have a key too: later requests can hit them."""

    FREE = 0
    CACHED = 1  # has a key and no owner
    OWNED = 2  # has one owner
    SHARED = 3  # has more


class Span(NamedTuple):
    """A block from the end of `step` on, until its next span."""

    step: int
    state: BlockState
    owners: tuple[Owner, ...]


class StepCounts(NamedTuple):
    """How many blocks were in each state when a step was over."""

    step: int
    now_s: float  # of its last event
    counts: tuple[tuple[int, ...], ...]  # per group, per `BlockState`


class GroupHistory:
    """The blocks [1, num_blocks) of one cache group; all are free at first."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.owners: list[tuple[Owner, ...]] = [()] * num_blocks  # now
        self.has_key = [False] * num_blocks  # now
        self.spans = [[Span(0, BlockState.FREE, ())] for _ in range(num_blocks)]
        self.counts = [num_blocks - 1, 0, 0, 0]  # per BlockState, now
        self.peak_used = 0  # most blocks with an owner after any event

    @property
    def refcounts(self) -> list[int]:
        """Of every block, now; a pool that was logged has the same."""
        return [len(owners) for owners in self.owners]

    @property
    def free_blocks(self) -> list[int]:
        """Those without owner and key, now, in order of their number."""
        blocks = range(NULL_BLOCK + 1, self.num_blocks)
        return [block for block in blocks if self.state(block) is BlockState.FREE]

    def state(self, block: int) -> BlockState:
        if self.owners[block]:
            return BlockState.SHARED if len(self.owners[block]) > 1 else BlockState.OWNED
        return BlockState.CACHED if self.has_key[block] else BlockState.FREE

    def change(
        self, step: int, block: int, owners: tuple[Owner, ...], has_key: bool
    ) -> None:
        """Notes the block's new owners and key; the last change in a step is its span."""
        self.counts[self.state(block)] -= 1
        self.owners[block], self.has_key[block] = owners, has_key
        state = self.state(block)
        self.counts[state] += 1
        spans = self.spans[block]
        if spans[-1].step == step:
            spans.pop()
        if not spans or spans[-1][1:] != (state, owners):
            spans.append(Span(step, state, owners))

    def num_used(self) -> int:
        return self.counts[BlockState.OWNED] + self.counts[BlockState.SHARED]


class PoolHistory(NamedTuple):
    """What `replay` found; steps without any event have the state of the one before."""

    groups: tuple[GroupHistory, ...]
    steps: list[StepCounts]  # in order

    @property
    def first_step(self) -> int:
        return self.steps[0].step if self.steps else 0

    @property
    def last_step(self) -> int:
        return self.steps[-1].step if self.steps else 0


def replay(events: Iterable[Event], num_blocks_per_group: Sequence[int]) -> PoolHistory:
    """Rebuilds the pools of a run.

    Args:
      num_blocks_per_group: each with the null block, as the log's header has them.

    Raises:
      ValueError: an event contradicts those before it; names its number (from 1).
    """
    groups = tuple(GroupHistory(num_blocks) for num_blocks in num_blocks_per_group)
    steps: list[StepCounts] = []
    for number, event in enumerate(events, start=1):
        try:
            if steps and event.step < steps[-1].step:
                raise ValueError(f"it follows one of step {steps[-1].step}.")
            group = _apply(groups, event)
        except ValueError as error:
            raise ValueError(
                f"event {number}, {event.kind.value} at step {event.step}: {error} The log "
                "lacks an event before this one, or the pool broke its rules."
            ) from error
        group.peak_used = max(group.peak_used, group.num_used())
        if steps and steps[-1].step == event.step:
            steps.pop()
        counts = tuple(tuple(one.counts) for one in groups)
        steps.append(StepCounts(event.step, event.now_s, counts))
    return PoolHistory(groups, steps)


def _apply(groups: Sequence[GroupHistory], event: Event) -> GroupHistory:
    """Changes the event's group, and returns it."""
    if event.group >= len(groups):
        raise ValueError(f"group {event.group} is not one of {len(groups)}.")
    group = groups[event.group]
    for block in event.blocks:
        if not NULL_BLOCK < block < group.num_blocks:
            raise ValueError(f"{block=} is not in [1, {group.num_blocks}).")
    if event.kind in _CHANGES:
        for block in event.blocks:
            _CHANGES[event.kind](group, block, event)
        return group
    if event.kind is EventKind.COPY and len(event.blocks) != 2:
        raise ValueError(f"blocks={event.blocks} must be (src, dst).")
    if event.kind in _SWAPS and len(event.blocks) != len(event.slots):
        raise ValueError(f"{len(event.blocks)=} differs from {len(event.slots)=}.")
    for block in _written(event):
        _require_owner(group, block)
    return group


def _written(event: Event) -> Sequence[int]:
    """Blocks whose K/V the event replaces."""
    if event.kind is EventKind.COPY:
        return event.blocks[1:]
    is_filled = event.kind in (EventKind.SWAP_IN, EventKind.LOAD)
    return event.blocks if is_filled else ()


def _allocate(group: GroupHistory, block: int, event: Event) -> None:
    if group.state(block) is not BlockState.FREE:
        raise ValueError(f"{block=} is not free but {_described(group, block)}.")
    group.change(event.step, block, (_owner(event),), has_key=False)


def _share(group: GroupHistory, block: int, event: Event) -> None:
    if group.state(block) is BlockState.FREE:
        raise ValueError(f"{block=} is free, so nobody can share it.")
    owners = (*group.owners[block], _owner(event))
    group.change(event.step, block, owners, group.has_key[block])


def _release(group: GroupHistory, block: int, event: Event) -> None:
    owner, owners = _owner(event), group.owners[block]
    if owner not in owners or len(owners) < 2:
        raise ValueError(
            f"{block=} is {_described(group, block)}: request {owner[0]}/{owner[1]} must "
            "be one of two or more owners."
        )
    place = owners.index(owner)
    left = owners[:place] + owners[place + 1 :]
    group.change(event.step, block, left, group.has_key[block])


def _free(group: GroupHistory, block: int, event: Event) -> None:
    _require_last_owner(group, block, event)
    if group.has_key[block]:
        raise ValueError(f"{block=} has a key: it must be retained, then evicted.")
    group.change(event.step, block, (), has_key=False)


def _retain(group: GroupHistory, block: int, event: Event) -> None:
    _require_last_owner(group, block, event)
    if not group.has_key[block]:
        raise ValueError(f"{block=} has no key: nobody could hit it.")
    group.change(event.step, block, (), has_key=True)


def _cache(group: GroupHistory, block: int, event: Event) -> None:
    _require_owner(group, block)
    if group.has_key[block]:
        raise ValueError(f"{block=} has a key already.")
    group.change(event.step, block, group.owners[block], has_key=True)


def _evict(group: GroupHistory, block: int, event: Event) -> None:
    if not group.has_key[block]:
        raise ValueError(f"{block=} is not cached but {_described(group, block)}.")
    group.change(event.step, block, group.owners[block], has_key=False)


_CHANGES: Mapping[EventKind, Callable[[GroupHistory, int, Event], None]] = {
    EventKind.ALLOCATE: _allocate,
    EventKind.SHARE: _share,
    EventKind.RELEASE: _release,
    EventKind.FREE: _free,
    EventKind.RETAIN: _retain,
    EventKind.CACHE: _cache,
    EventKind.EVICT: _evict,
}
_SWAPS = (EventKind.SWAP_OUT, EventKind.SWAP_IN)


def _owner(event: Event) -> Owner:
    if event.request_id is None:
        raise ValueError("it names no request, so the blocks' owner is unknown.")
    return event.request_id, event.sample_index


def _require_owner(group: GroupHistory, block: int) -> None:
    if not group.owners[block]:
        raise ValueError(f"{block=} is {_described(group, block)}: nobody owns it.")


def _require_last_owner(group: GroupHistory, block: int, event: Event) -> None:
    owners = group.owners[block]
    if len(owners) != 1 or (event.request_id is not None and owners[0] != _owner(event)):
        raise ValueError(
            f"{block=} is {_described(group, block)}: it must have one owner, who leaves."
        )


def _described(group: GroupHistory, block: int) -> str:
    """Such as: owned by 3/0, 4/0 (request id/sample index)."""
    owners = ", ".join(f"{request}/{sample}" for request, sample in group.owners[block])
    return f"owned by {owners}" if owners else group.state(block).name.lower()
