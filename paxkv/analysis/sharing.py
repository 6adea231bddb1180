"""How many blocks requests with a common beginning hold, and how many they share.

Counted, not timed: the scheduler serves them with tokens that are known beforehand, and
the refcounts of the pools are counted at the last step in which all of them run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paxkv.allocators.paged import PagedAllocator
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.moves import CopyBlock
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler import Scheduler
from paxkv.scheduler_building import build_scheduler
from paxkv.types import Plan, Request, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """Requests that arrive together and differ after `num_shared` prompt tokens."""

    num_requests: int
    num_shared: int  # prompt tokens that all begin with
    num_own: int  # prompt tokens of each
    num_outputs: int  # tokens of each sample
    num_samples: int = 1  # of each request
    block_size: int = 16  # tokens

    def __post_init__(self):
        at_least_1 = (self.num_requests, self.num_outputs, self.num_samples)
        if min(*at_least_1, self.block_size) < 1 or min(self.num_shared, self.num_own) < 0:
            raise ValueError(
                f"{self} has a number that is too small; shared and own tokens may be 0, "
                "all others must be at least 1."
            )
        if self.num_prompt < 1:
            raise ValueError(f"{self} has empty prompts; give shared or own tokens.")

    @property
    def num_prompt(self) -> int:
        return self.num_shared + self.num_own

    @property
    def num_sequences(self) -> int:
        return self.num_requests * self.num_samples

    @property
    def max_context(self) -> int:
        return self.num_prompt + self.num_outputs

    @property
    def blocks_per_sequence(self) -> int:
        """Of a sequence that shares nothing and sees all its tokens."""
        return -(-self.max_context // self.block_size)

    def prompt(self, request: int) -> tuple[int, ...]:
        """Token ids; the first `num_shared` are the same in all."""
        return (0,) * self.num_shared + (request + 1,) * self.num_own


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """What a load held in the last step in which all its sequences ran."""

    by_owners: tuple[dict[int, int], ...]  # per cache group: blocks of so many owners
    num_computed_tokens: int
    num_hit_tokens: int  # of prompts, found in the cache
    num_copied_blocks: tuple[int, ...]  # per cache group, since forks wrote to them

    def held(self, group: int = 0) -> int:
        """Blocks that have an owner."""
        return sum(self.by_owners[group].values())

    def shared(self, group: int = 0) -> int:
        """Blocks that have two owners or more."""
        return sum(count for owners, count in self.by_owners[group].items() if owners > 1)


def blocks_by_owners(refcounts: Iterable[int]) -> dict[int, int]:
    """How many blocks have 1, 2, ... owners; those without are left out."""
    counts = Counter(count for count in refcounts if count)
    return dict(sorted(counts.items()))


def count_blocks(
    load: SharedLoad,
    *,
    shares: bool,
    windows: Sequence[int | None] = (None,),
    on_progress: Callable[[int], object] = lambda count: None,
) -> HeldBlocks:
    """Serves the load in a pool where all of it fits.

    Args:
      shares: with the prefix cache, and requests with several samples; without it, each
        sample is a request by itself.
      windows: per cache group, tokens that a position sees; None: all.
      on_progress: gets the number of sequences that have ended since the last call.
    """
    scheduler = _scheduler(load, shares, windows)
    for index in range(load.num_requests if shares else load.num_sequences):
        refused = scheduler.add(_request(load, index, shares))
        assert not refused, refused
    assert isinstance(scheduler.allocator, PagedAllocator)
    pools = scheduler.allocator.pools
    by_owners: tuple[dict[int, int], ...] = tuple({} for _ in windows)
    num_copied = [0] * len(windows)
    num_computed = num_hits = 0
    while scheduler.has_unfinished:
        plan = scheduler.plan(0.0)
        if len(plan.rows) == load.num_sequences:
            by_owners = tuple(blocks_by_owners(pool.refcounts) for pool in pools)
        for move in plan.moves:
            num_copied[move.group] += isinstance(move, CopyBlock)
        num_computed += int(plan.lengths.sum())
        outcome = scheduler.commit(plan, _result(plan), 0.0)
        ended = [one.metrics for one in outcome.updates if one.metrics is not None]
        num_hits += sum(one.num_cached_tokens for one in ended if not one.sample_index)
        on_progress(len(ended))
    return HeldBlocks(
        by_owners=by_owners,
        num_computed_tokens=num_computed,
        num_hit_tokens=num_hits,
        num_copied_blocks=tuple(num_copied),
    )


def _scheduler(load: SharedLoad, shares: bool, windows: Sequence[int | None]) -> Scheduler:
    """With room for all sequences, each by itself."""
    num_blocks = load.num_sequences * load.blocks_per_sequence + 1
    return build_scheduler(
        CacheConfig(block_size=load.block_size, prefix_caching=shares),
        SchedulerConfig(
            max_num_seqs=load.num_sequences,
            max_num_batched_tokens=load.num_sequences * load.num_prompt,
            watermark=0.0,
            hold_shared_prefixes=shares,
        ),
        num_blocks=(num_blocks,) * len(windows),
        windows=windows,
        max_context=load.max_context,
        vocab_size=load.num_sequences + 1,
    )


def _request(load: SharedLoad, index: int, shares: bool) -> Request:
    samples = load.num_samples
    return Request(
        request_id=index,
        prompt_ids=load.prompt(index if shares else index // samples),
        sampling=SamplingParams(
            n=samples if shares else 1,
            max_tokens=load.num_outputs,
            temperature=1.0,
            ignore_eos=True,
        ),
        arrival_s=0.0,
    )


def _result(plan: Plan) -> StepResult:
    """Each sample of a request goes on in its own way, so that no two become equal."""
    tokens = [request.sample_index for request in plan.requests]
    return StepResult(tokens=np.asarray(tokens, np.int32), duration_s=0.0)


def sharing_table(apart: HeldBlocks, shared: HeldBlocks, window: int) -> str:
    """Both ways side by side; the second cache group is the one with the window."""
    both = (apart, shared)
    lines: list[tuple[str, list[str]]] = [
        ("", ["apart", "shared"]),
        ("blocks held", [f"{each.held():,}" for each in both]),
        ("  shared by several", [f"{each.shared():,}" for each in both]),
        ("saved by sharing", ["", f"{apart.held() - shared.held():,}"]),
        ("  % of blocks held apart", ["", _saved_percent(shared.held(), apart.held())]),
        ("blocks copied", [f"{each.num_copied_blocks[0]:,}" for each in both]),
        ("prompt tokens found in the cache", [f"{each.num_hit_tokens:,}" for each in both]),
        ("tokens computed", [f"{each.num_computed_tokens:,}" for each in both]),
        (f"blocks held, window of {window:,}", [f"{each.held(1):,}" for each in both]),
        (
            "  % saved by the window",
            [_saved_percent(each.held(1), each.held()) for each in both],
        ),
    ]
    label_width = max(len(label) for label, _ in lines)
    width = max(len(cell) for _, cells in lines for cell in cells)
    text = [
        "  ".join((f"{label:<{label_width}}", *(f"{cell:>{width}}" for cell in cells)))
        for label, cells in lines
    ]
    rule = "-" * len(text[0])
    owners = ", ".join(
        f"{count:,} blocks have {num_owners:,}"
        for num_owners, count in shared.by_owners[0].items()
    )
    return "\n".join([text[0], rule, *text[1:], rule, f"owners, shared: {owners}"])


def _saved_percent(held: int, of: int) -> str:
    return f"{100 * (1 - held / of):.2f}"
