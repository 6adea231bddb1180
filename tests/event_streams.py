"""Streams of events: one written by hand, and random ones of a toy pool."""

import random

from paxkv.events import Event, EventKind

K = EventKind


def sample_events() -> list[Event]:
    """Two requests in a pool of 5 blocks: a hit, a copy, a preemption, an eviction."""

    def at(step: int, kind: EventKind, now_s: float = -1.0, **fields) -> Event:
        return Event(
            kind=kind, step=step, now_s=float(step) if now_s < 0 else now_s, **fields
        )

    return [
        at(0, K.ADD, request_id=7),
        at(1, K.ADMIT, request_id=7),
        at(1, K.HIT, request_id=7),
        at(1, K.ALLOCATE, request_id=7, blocks=(1, 2)),
        at(1, K.STEP, now_s=1.5, num_tokens=8, duration_s=0.5),
        at(2, K.CACHE, blocks=(1,)),
        at(2, K.ADD, request_id=8),
        at(2, K.ADMIT, request_id=8, num_tokens=4),
        at(2, K.HIT, request_id=8, num_tokens=4),
        at(2, K.SHARE, request_id=8, blocks=(1, 2)),
        at(2, K.ALLOCATE, request_id=8, blocks=(3,)),
        at(2, K.COPY, request_id=8, blocks=(2, 3)),
        at(2, K.RELEASE, request_id=8, blocks=(2,)),
        at(2, K.STEP, now_s=2.5, num_tokens=2, duration_s=0.5),
        at(3, K.PREEMPT, request_id=8),
        at(3, K.SWAP_OUT, request_id=8, blocks=(3,), slots=(0,)),
        at(3, K.FREE, request_id=8, blocks=(3,)),
        at(3, K.RELEASE, request_id=8, blocks=(1,)),
        at(3, K.STEP, now_s=3.5, num_tokens=1, duration_s=0.5),
        at(3, K.FREE, blocks=(2,)),
        at(3, K.RETAIN, request_id=7, blocks=(1,)),
        at(3, K.FINISH, now_s=3.5, request_id=7, detail="LENGTH"),
        at(4, K.EVICT, blocks=(1,)),
        at(4, K.ADMIT, request_id=8),
        at(4, K.ALLOCATE, request_id=8, blocks=(1,)),
        at(4, K.SWAP_IN, request_id=8, blocks=(1,), slots=(0,)),
        at(4, K.STEP, now_s=4.75, num_tokens=1, duration_s=0.75),
    ]


class ToyPool:
    """Blocks with counts instead of owners, that tells what it does; one per group."""

    def __init__(self, group: int, num_blocks: int, events: list[Event]):
        self.group = group
        self.refcounts = [0] * num_blocks
        self.has_key = [False] * num_blocks
        self.step = 0
        self._events = events

    @property
    def free_blocks(self) -> list[int]:
        blocks = range(1, len(self.refcounts))
        return [b for b in blocks if not self.refcounts[b] and not self.has_key[b]]

    @property
    def idle_blocks(self) -> list[int]:
        blocks = range(1, len(self.refcounts))
        return [b for b in blocks if not self.refcounts[b] and self.has_key[b]]

    def tell(self, kind: EventKind, *blocks: int, **fields) -> None:
        now_s = float(self.step)
        self._events.append(
            Event(
                kind=kind,
                step=self.step,
                now_s=now_s,
                group=self.group,
                blocks=blocks,
                **fields,
            )
        )

    def allocate(self, block: int, request_id: int, sample_index: int) -> None:
        if self.has_key[block]:
            self.has_key[block] = False
            self.tell(K.EVICT, block)
        self.refcounts[block] = 1
        self.tell(K.ALLOCATE, block, request_id=request_id, sample_index=sample_index)

    def share(self, block: int, request_id: int, sample_index: int) -> None:
        self.refcounts[block] += 1
        self.tell(K.SHARE, block, request_id=request_id, sample_index=sample_index)

    def give_key(self, block: int) -> None:
        self.has_key[block] = True
        self.tell(K.CACHE, block)

    def lose_key(self, block: int) -> None:
        self.has_key[block] = False
        self.tell(K.EVICT, block)

    def leave(self, block: int, request_id: int, sample_index: int) -> None:
        self.refcounts[block] -= 1
        kind = K.RETAIN if self.has_key[block] else K.FREE
        if self.refcounts[block]:
            kind = K.RELEASE
        self.tell(kind, block, request_id=request_id, sample_index=sample_index)


def random_events(
    seed: int, num_steps: int = 60, num_blocks: tuple[int, ...] = (17, 9)
) -> tuple[list[Event], list[ToyPool]]:
    """A consistent stream, and the pools as they are at its end."""
    chance = random.Random(seed)
    events: list[Event] = []
    pools = [ToyPool(group, count, events) for group, count in enumerate(num_blocks)]
    holds: dict[tuple[int, int, int], set[int]] = {}  # (group, *owner) -> blocks
    for step in range(1, num_steps + 1):
        for _ in range(chance.randrange(6)):
            pool = chance.choice(pools)
            pool.step = step
            owner = (chance.randrange(12), chance.randrange(2))
            held = holds.setdefault((pool.group, *owner), set())
            _do_something(chance, pool, owner, held)
        events.append(
            Event(kind=K.STEP, step=step, now_s=step + 0.5, num_tokens=1, duration_s=0.5)
        )
    return events, pools


def _do_something(
    chance: random.Random, pool: ToyPool, owner: tuple[int, int], held: set[int]
) -> None:
    free, idle = pool.free_blocks, pool.idle_blocks
    used = [b for b, count in enumerate(pool.refcounts) if count]
    shareable = [b for b in used + idle if b not in held]
    keyless = [b for b in used if not pool.has_key[b]]
    keyed = [b for b in range(len(pool.has_key)) if pool.has_key[b]]
    match chance.randrange(6):
        case 0 | 1 if free or idle:
            block = chance.choice(free or idle)
            pool.allocate(block, *owner)
            held.add(block)
        case 2 if shareable:
            block = chance.choice(shareable)
            pool.share(block, *owner)
            held.add(block)
        case 3 if keyless:
            pool.give_key(chance.choice(keyless))
        case 4 if held:
            block = chance.choice(sorted(held))
            pool.leave(block, *owner)
            held.discard(block)
        case 5 if keyed and chance.random() < 0.2:
            pool.lose_key(chance.choice(keyed))
