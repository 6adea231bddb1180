"""Whom to preempt when the pool is full.

To add a policy, write a function and name it in `VICTIM_POLICIES`. Whatever it picks,
`choose_victim` sees to it that the oldest request goes on, so that progress is certain.
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


def choose_victim(
    policy: VictimPolicy, running: Sequence[Request], needy: int, max_preemptions: int
) -> Request | None:
    """Who gives way to `running[needy]`, of those running, oldest first: perhaps itself.

    Never the oldest. Who was preempted `max_preemptions` times is exempt, unless the
    oldest cannot go on otherwise. None: nobody can be asked, the needy must wait.
    """
    others = running[1:]
    candidates = [other for other in others if other.num_preemptions < max_preemptions]
    if needy == 0:
        assert others, "the allocator's check let in a request that cannot run alone"
        candidates = candidates or others
    return policy(candidates) if candidates else None
