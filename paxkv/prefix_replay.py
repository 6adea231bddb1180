"""Feeds a trace of prompts, known by the hashes of their blocks, to a prefix cache.

Counts hits alone: no model, no scheduler, one request after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paxkv.block_pool import BlockPool
from paxkv.cache_keys import token_bytes
from paxkv.policies.eviction import Belady, EvictionPolicy
from paxkv.prefix_cache import PrefixCache
from paxkv.workloads.traces import mooncake
from paxkv.workloads.traces.rows import approximate_tokens

HASH_BLOCK_SIZE = 1  # one hash of the trace is one pseudo token, and a block of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One line of a trace."""

    timestamp_ms: float  # of the arrival
    input_length: int  # tokens
    output_length: int  # tokens
    hash_ids: tuple[int, ...]  # of the prompt's blocks; each stands for all before it too


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of the file, and what could not be read."""

    requests: tuple[TraceRequest, ...]
    malformed: tuple[str, ...]  # "line 7: why", for every line that is no request

    @property
    def num_lookups(self) -> int:
        """Blocks looked up by all requests."""
        return sum(len(request.hash_ids) for request in self.requests)

    @property
    def longest(self) -> int:
        """Blocks of the longest request."""
        return max((len(request.hash_ids) for request in self.requests), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCounts:
    """What a replay came to."""

    num_lookups: int  # blocks looked up
    num_hits: int  # of these, found
    num_evicted: int  # blocks
    num_blocks: int | None  # capacity; None: without limit

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_lookups if self.num_lookups else 0.0


def read_trace(path: Path) -> Trace:
    """Reads Mooncake's format (paxkv/workloads/traces/mooncake.py), in the file's order.

    Raises:
      OSError: the file cannot be read.
    """
    malformed: list[str] = []

    def told(number: int, why: str) -> None:
        malformed.append(f"line {number}: {why}")

    with open(path, encoding="utf-8", errors="replace") as file:
        requests = tuple(
            TraceRequest(
                timestamp_ms=(row.arrival_s or 0.0) * 1e3,  # this format has times
                input_length=row.input_tokens,
                output_length=row.output_tokens,
                hash_ids=row.hash_ids,
            )
            for _, row in mooncake.rows(file, told, approximate_tokens)
        )
    return Trace(requests=requests, malformed=tuple(malformed))


def replay_prefixes(
    requests: Sequence[TraceRequest],
    num_blocks: int | None,
    policy: EvictionPolicy,
    on_request: Callable[[], object] = lambda: None,
) -> PrefixCounts:
    """Looks all requests up, one after the other, in a cache of `num_blocks` blocks.

    A request owns its whole path, the missing blocks included, and releases it before the
    next one comes. `on_request` is called before each.

    Raises:
      ValueError: the capacity does not hold the longest request.
    """
    lookups = [request.hash_ids for request in requests]
    longest = max(map(len, lookups), default=0)
    if num_blocks is not None and num_blocks < max(longest, 1):
        raise ValueError(
            f"{num_blocks=} cannot hold the longest request, of {longest} blocks; "
            f"need ≥ {max(longest, 1)}."
        )
    total = sum(map(len, lookups))
    capacity = max(total, 1) if num_blocks is None else num_blocks
    pool = BlockPool(capacity + 1)  # and the null block
    cache = PrefixCache([pool], policy, block_size=HASH_BLOCK_SIZE, windowed=[False])
    num_hits = 0
    for request in requests:
        on_request()
        cache.set_now(request.timestamp_ms / 1e3)
        num_hits += serve_prompt(cache, pool, request.hash_ids, HASH_BLOCK_SIZE)
    return PrefixCounts(
        num_lookups=total,
        num_hits=num_hits,
        num_evicted=cache.num_evicted,
        num_blocks=num_blocks,
    )


def replay_optimum(
    requests: Sequence[TraceRequest],
    num_blocks: int | None,
    on_request: Callable[[], object] = lambda: None,
) -> PrefixCounts:
    """The same under `Belady`, who knows the trace: no policy has more hits here."""
    belady = Belady([[token_bytes((hash_id,)) for hash_id in r.hash_ids] for r in requests])

    def advance() -> None:
        belady.advance()
        on_request()

    return replay_prefixes(requests, num_blocks, belady, advance)


def serve_prompt(
    cache: PrefixCache, pool: BlockPool, token_ids: tuple[int, ...], block_size: int
) -> int:
    """One request from its look-up to its release; returns the blocks that it found.

    Args:
      token_ids: of its prompt, in whole blocks of `block_size` tokens.
    """
    root = cache.root(())
    path = cache.match(root, token_bytes(token_ids))
    held = [node.blocks[0] for node in path]
    pool.share(held)
    cache.use(path)
    fresh = pool.allocate(len(token_ids) // block_size - len(path))
    node = path[-1] if path else cache.root(())  # an eviction may have emptied the root
    for index, block in enumerate(fresh, start=len(path)):
        key = token_bytes(token_ids[index * block_size : (index + 1) * block_size])
        node = cache.insert(node, key, block_size)
        cache.attach(node, 0, block)
    pool.free(held + fresh)
    return len(path)
