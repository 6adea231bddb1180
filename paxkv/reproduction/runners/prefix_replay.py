"""Hits of a prefix cache of several sizes: one prompt after the other, without model or
clock.

Of the tree it reads the workload, and `replay` (the fields of `ReplayConfig`). Prompts are
those of a trace that knows them by hashes (Mooncake's), or the first turns of what is
drawn.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paxkv.analysis.hit_rates import OPTIMUM
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.naming import policy_named
from paxkv.prefix_replay import (
    PrefixCounts,
    TraceRequest,
    read_trace,
    replay_optimum,
    replay_prefixes,
)
from paxkv.reproduction.runners.published_traces import with_trace
from paxkv.trials.trial_config import TrialConfig, trial_config
from paxkv.workloads.drawing import Workload
from paxkv.workloads.traces.mooncake import BLOCK_TOKENS

KIND = "computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The caches that prompts are looked up in."""

    capacities: tuple[int | None, ...]  # tokens, ascending; None: without limit
    eviction: str = "lru"  # a name in EVICTION_POLICIES, or `OPTIMUM`
    # tokens; prompts are then cut into whole blocks. None: a trace's own blocks, each
    # prompt's last one included, which is full or not
    block_size: int | None = None


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Lists have an entry per capacity.

    Raises:
      NotAvailable: the trace is not on this machine.
    """
    del profile  # no time passes
    config = ReplayConfig(**tree["replay"])
    trial = trial_config(with_trace(tree))
    requests = list(_requests(trial, config.block_size))
    tokens_per_block = config.block_size or BLOCK_TOKENS
    counts = [
        _replayed(requests, capacity and capacity // tokens_per_block, config.eviction)
        for capacity in config.capacities
    ]
    num_tokens = sum(request.input_length for request in requests)
    found: dict[str, Any] = {
        "num_requests": len(requests),
        "num_tokens": num_tokens,
        "num_lookups": counts[0].num_lookups,
        "capacities": list(config.capacities),
        "num_hits": [one.num_hits for one in counts],
        "hit_percent": [100 * one.hit_rate for one in counts],
    }
    if config.block_size is not None:  # all blocks are full
        hit_tokens = [one.num_hits * config.block_size for one in counts]
        found["token_hit_percent"] = [100 * tokens / num_tokens for tokens in hit_tokens]
        found["most_found_percent"] = max(found["token_hit_percent"])
    return found


def _replayed(
    requests: Sequence[TraceRequest], num_blocks: int | None, eviction: str
) -> PrefixCounts:
    if eviction == OPTIMUM:
        return replay_optimum(requests, num_blocks)
    make = policy_named(eviction, EVICTION_POLICIES, "eviction policy")
    return replay_prefixes(requests, num_blocks, make())


def _requests(trial: TrialConfig, block_size: int | None) -> Iterable[TraceRequest]:
    workload = trial.workload
    if workload.trace_path is None:
        if block_size is None:
            raise ValueError("replay.block_size=None needs a trace; set it to tokens.")
        return _drawn(trial, block_size)
    requests = read_trace(Path(workload.trace_path)).requests[: workload.num_requests]
    if block_size is None:
        return requests
    return (_in_whole_blocks(request, block_size) for request in requests)


def _in_whole_blocks(request: TraceRequest, block_size: int) -> TraceRequest:
    """Each block of the trace as several smaller ones; a hash says nothing about parts, so
    blocks that begin alike but have different hashes share none."""
    parts, rest = divmod(BLOCK_TOKENS, block_size)
    if rest:
        raise ValueError(
            f"replay.{block_size=} must divide a trace's {BLOCK_TOKENS} tokens a block."
        )
    hash_ids = [h * parts + part for h in request.hash_ids for part in range(parts)]
    num_whole = request.input_length // block_size
    return replace(request, hash_ids=tuple(hash_ids[:num_whole]))


def _drawn(trial: TrialConfig, block_size: int) -> Iterator[TraceRequest]:
    """First turns of a drawn workload; an id is that of a block behind all before it."""
    sessions = Workload(
        trial.workload, max_context=trial.max_context, vocab_size=trial.model.vocab_size
    )
    ids: dict[tuple[int, tuple[int, ...]], int] = {}
    for session in sessions:
        turn = session.turns[0]
        parent, path = -1, []
        for end in range(block_size, len(turn.prompt_ids) + 1, block_size):
            block = turn.prompt_ids[end - block_size : end]
            parent = ids.setdefault((parent, block), len(ids))
            path.append(parent)
        yield TraceRequest(
            timestamp_ms=1e3 * session.arrival_s,
            input_length=len(turn.prompt_ids),
            output_length=turn.max_tokens,
            hash_ids=tuple(path),
        )
