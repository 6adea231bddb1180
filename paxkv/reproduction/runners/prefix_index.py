"""Three indexes of cached prefixes on the same prompts, and how much of what they could
find an engine's order of admission really finds.

The indexes are the prefix cache of the engine, the radix tree and, written here, a table
of hashes that each stand for a block and all before it (as vLLM's). Prompts come one after
the other. Then the trial is simulated, with its own scheduler. Of the tree it reads, beside
the trial, `index` (the fields of `IndexConfig`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from paxkv.block_pool import BlockPool
from paxkv.cache_keys import token_bytes
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.prefix_cache import PrefixCache
from paxkv.prefix_replay import serve_prompt
from paxkv.radix_tree import RadixTree
from paxkv.reproduction.runners import simulated
from paxkv.trials.trial_config import TrialConfig, trial_config
from paxkv.workloads.drawing import Workload

KIND = simulated.KIND
Tokens = tuple[int, ...]  # of a prompt, in whole blocks
Index = Callable[[Tokens], int]  # serves a prompt; blocks that it found


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """How the indexes are compared."""

    capacities: tuple[int | None, ...]  # blocks; None: without limit, and the last
    eviction: str = "lru"  # of the prefix cache; the others evict what was used last


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """`hit_tokens` has a list per index, with an entry per capacity."""
    config, trial = IndexConfig(**tree["index"]), trial_config(tree)
    block_size = trial.engine.cache.block_size
    prompts = [_in_whole_blocks(ids, block_size) for ids in _prompts(trial)]
    total = sum(map(len, prompts)) // block_size
    hits: dict[str, list[list[int]]] = {name: [] for name in ("cache", "radix", "hashes")}
    for capacity in config.capacities:
        num_blocks = total if capacity is None else capacity
        for name, index in (
            ("cache", cache_index(num_blocks, block_size, config.eviction)),
            ("radix", radix_index(num_blocks, block_size)),
            ("hashes", hash_index(num_blocks, block_size)),
        ):
            hits[name].append([index(tokens) for tokens in prompts])
    metrics = simulated.run(tree, profile)
    most = sum(hits["hashes"][-1]) * block_size
    return {
        **metrics,
        "num_prompts": len(prompts),
        "num_lookup_tokens": total * block_size,
        "hit_tokens": {
            name: [block_size * sum(each) for each in lists] for name, lists in hits.items()
        },
        "largest_difference_tokens": block_size * _largest_difference(hits),
        "percent_of_optimum": 100 * metrics["num_cached_tokens"] / most,
    }


def cache_index(num_blocks: int, block_size: int, eviction: str = "lru") -> Index:
    """The engine's own."""
    pool = BlockPool(num_blocks + 1)  # and the null block
    policy = EVICTION_POLICIES[eviction]()
    cache = PrefixCache([pool], policy, block_size=block_size, windowed=[False])

    return lambda tokens: serve_prompt(cache, pool, tokens, block_size)


def radix_index(num_blocks: int, block_size: int) -> Index:
    """SGLang's form of one."""
    tree, ids = RadixTree(block_size), count(1)
    num_free = num_blocks

    def serve(tokens: Tokens) -> int:
        nonlocal num_free
        path = tree.match(tokens)
        num_missing = len(tokens) // block_size - len(path)
        locked = tree.lock(tokens)
        num_free += len(tree.evict_leaves(max(num_missing - num_free, 0)))
        tree.unlock(locked)
        tree.insert(tokens, [*path, *(next(ids) for _ in range(num_missing))])
        num_free -= num_missing
        return len(path)

    return serve


def hash_index(num_blocks: int, block_size: int) -> Index:
    """A table of hashes in the order of their last use, of one prompt the last block first,
    so that no block outlives the ones before it."""
    table: dict[bytes, None] = {}

    def serve(tokens: Tokens) -> int:
        chain = list(_hash_chain(tokens, block_size))
        num_hits = sum(1 for _ in takewhile(table.__contains__, chain))
        for digest in reversed(chain):
            table.pop(digest, None)
            table[digest] = None
        for digest in list(table)[: max(len(table) - num_blocks, 0)]:
            del table[digest]
        return num_hits

    return serve


def _hash_chain(tokens: Tokens, block_size: int) -> Iterator[bytes]:
    digest = b""
    for start in range(0, len(tokens), block_size):
        block = token_bytes(tokens[start : start + block_size])
        digest = hashlib.sha256(digest + block).digest()
        yield digest


def _prompts(trial: TrialConfig) -> Iterator[Tokens]:
    """First turns, in order of arrival."""
    sessions = Workload(
        trial.workload, max_context=trial.max_context, vocab_size=trial.model.vocab_size
    )
    return (session.turns[0].prompt_ids for session in sessions)


def _in_whole_blocks(tokens: Tokens, block_size: int) -> Tokens:
    return tokens[: len(tokens) // block_size * block_size]


def _largest_difference(hits: Mapping[str, Sequence[Sequence[int]]]) -> int:
    """In blocks, of two indexes on any prompt at any capacity."""
    return max(
        max(found) - min(found)
        for lists in zip(*hits.values(), strict=True)
        for found in zip(*lists, strict=True)
    )
