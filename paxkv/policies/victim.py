"""Whom to preempt when the pool is full.

To add a policy, write a function of the candidates and name it in a config by its import
path. Whatever it picks, `choose_victim` sees to it that the oldest request goes on, so that
progress is certain.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request


@runtime_checkable
class BlockOwners(Protocol):
    """What a candidate asks of the allocator."""

    def num_freed_by(self, rows: Sequence[int]) -> int:
        """Blocks that these rows alone own: what releasing them all would free."""


class Candidate:
    """A running request, with all its running sequences, that might give way."""

    def __init__(
        self,
        requests: Sequence[Request],
        rows: Sequence[int],
        allocator: BlockOwners,
        tables: SequenceTables,
    ):
        self.requests = tuple(requests)  # oldest first; one, but for samples and beams
        self.rows = tuple(rows)
        self._allocator = allocator
        self._tables = tables

    @property
    def priority(self) -> int:
        """Smaller is more urgent."""
        return self.requests[0].options.priority

    @property
    def num_preemptions(self) -> int:
        return max(request.num_preemptions for request in self.requests)

    @cached_property
    def num_outputs(self) -> int:
        return sum(len(request.output_ids) for request in self.requests)

    @cached_property
    def num_blocks(self) -> int:
        """Blocks in its tables, shared ones counted for each sequence."""
        counts = self._tables.num_blocks
        return int(sum(each[list(self.rows)].sum() for each in counts))

    @cached_property
    def num_freed_blocks(self) -> int:
        """Blocks that nobody else shares."""
        return self._allocator.num_freed_by(self.rows)

    @cached_property
    def num_computed_tokens(self) -> int:
        """Progress that would be lost: K/V to compute again."""
        return int(self._tables.num_computed[np.asarray(self.rows)].sum())


# Picks one of at least two candidates, given oldest first.
VictimPolicy = Callable[[Sequence[Candidate]], Candidate]


def newest(candidates: Sequence[Candidate]) -> Candidate:
    """Last come, first to go: keeps the order of arrival (the PagedAttention paper)."""
    return candidates[-1]


def lowest_priority(candidates: Sequence[Candidate]) -> Candidate:
    """The least urgent, of these the newest (vLLM's priority scheduling)."""
    return max(reversed(candidates), key=lambda one: one.priority)


def fewest_outputs(candidates: Sequence[Candidate]) -> Candidate:
    """Least decoded first, then the longest prompt, then the newest (as SGLang retracts).

    A long prompt frees many blocks, and is computed again in few, large chunks.
    """
    return min(
        reversed(candidates),
        key=lambda one: (one.num_outputs, -len(one.requests[0].prompt_ids)),
    )


def fewest_blocks(candidates: Sequence[Candidate]) -> Candidate:
    """Holds least, so little is lost; may take several victims."""
    return min(reversed(candidates), key=lambda one: one.num_blocks)


def most_blocks(candidates: Sequence[Candidate]) -> Candidate:
    """Frees most that nobody shares, so one victim often suffices."""
    return max(reversed(candidates), key=lambda one: one.num_freed_blocks)


def least_progress_lost(candidates: Sequence[Candidate]) -> Candidate:
    """Fewest computed tokens for each block that it frees."""
    return min(
        reversed(candidates),
        key=lambda one: one.num_computed_tokens / max(one.num_freed_blocks, 1),
    )


VICTIM_POLICIES: Mapping[str, VictimPolicy] = {
    "newest": newest,
    "lowest_priority": lowest_priority,
    "fewest_outputs": fewest_outputs,
    "fewest_blocks": fewest_blocks,
    "most_blocks": most_blocks,
    "least_progress_lost": least_progress_lost,
}


def choose_victim(
    policy: VictimPolicy, running: Sequence[Candidate], needy: int, max_preemptions: int
) -> Candidate | None:
    """Who gives way to `running[needy]`, of those running, oldest first: perhaps itself.

    Never the oldest. Who was preempted `max_preemptions` times is exempt, unless the
    oldest cannot go on otherwise. Who would free nothing, since others share all its
    blocks, is asked only if all are so. None: nobody can be asked, the needy must wait.
    """
    others = running[1:]
    candidates = [other for other in others if other.num_preemptions < max_preemptions]
    if needy == 0:
        candidates = candidates or list(others)
    while len(candidates) > 1:
        victim = policy(candidates)
        if victim not in candidates:
            raise ValueError(
                f"the victim policy returned {victim!r}; it must return one of the "
                f"{len(candidates)} candidates that it was given."
            )
        if victim.num_freed_blocks:
            return victim
        candidates.remove(victim)
    return candidates[0] if candidates else None
