"""Whom to preempt when the pool is full.

To add a policy, write a function and name it in `VICTIM_POLICIES`. Whatever it picks,
progress is certain: the scheduler never offers the oldest running request, and one that
was preempted `max_preemptions` times only if nothing else can save the oldest.
"""

from collections.abc import Callable, Mapping, Sequence

from paxkv.types import Request

# Picks one of at least one running requests, given oldest first.
VictimPolicy = Callable[[Sequence[Request]], Request]


def newest(candidates: Sequence[Request]) -> Request:
    """Last come, first to go: keeps the order of arrival (the PagedAttention paper)."""
    return candidates[-1]


def fewest_outputs(candidates: Sequence[Request]) -> Request:
    """Least decoded first, then the longest prompt, then the newest (as SGLang retracts).

    A long prompt frees many blocks, and is computed again in few, large chunks.
    """
    return min(
        reversed(candidates),
        key=lambda request: (len(request.output_ids), -len(request.prompt_ids)),
    )


VICTIM_POLICIES: Mapping[str, VictimPolicy] = {
    "newest": newest,
    "fewest_outputs": fewest_outputs,
}
