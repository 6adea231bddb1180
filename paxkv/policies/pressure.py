"""What becomes of a victim when the pool is full.

To add a policy, write a function of the victim and the costs, and name it in a config by
its import path.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paxkv.policies.victim import Candidate


class Relief(enum.Enum):
    """How the pool gets blocks back."""

    WAIT = "nobody gives way; who gets no block stands still until others end"
    DROP = "the victim ends, with DROPPED_POOL_FULL"
    RECOMPUTE = "the victim's K/V is given up, and computed again from its tokens later"
    SWAP = "the victim's K/V goes to the host, if it has room, and comes back as it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationCosts:
    """Measured on the device, or set: what swapping and recomputing take."""

    swap_s_per_block: float = 0.0  # out and in again
    recompute_s_per_token: float = 0.0


PressurePolicy = Callable[[Candidate, RelocationCosts], Relief]


def reject(victim: Candidate, costs: RelocationCosts) -> Relief:
    """Sheds load: requests that find no room when they come are refused
    (REJECTED_POOL_FULL), and a victim is given up, its tokens so far delivered."""
    del victim, costs
    return Relief.DROP


def wait(victim: Candidate, costs: RelocationCosts) -> Relief:
    """No work is lost. Only if all stand still does the newest go, to be recomputed."""
    del victim, costs
    return Relief.WAIT


def preempt_recompute(victim: Candidate, costs: RelocationCosts) -> Relief:
    """vLLM V1's only way."""
    del victim, costs
    return Relief.RECOMPUTE


def preempt_swap(victim: Candidate, costs: RelocationCosts) -> Relief:
    """All sequences of a request go together and come back together."""
    del victim, costs
    return Relief.SWAP


def paper(victim: Candidate, costs: RelocationCosts) -> Relief:
    """The paper's choice (Kwon et al., SOSP 2023, section 4.5): sequences that share blocks
    are swapped together, a lone one is recomputed. vLLM V0 has it, too."""
    del costs
    return Relief.SWAP if len(victim.requests) > 1 else Relief.RECOMPUTE


def swap_or_recompute(victim: Candidate, costs: RelocationCosts) -> Relief:
    """The cheaper of the two: bytes over the link against products on the device."""
    swap_s = costs.swap_s_per_block * victim.num_freed_blocks
    recompute_s = costs.recompute_s_per_token * victim.num_computed_tokens
    return Relief.SWAP if swap_s < recompute_s else Relief.RECOMPUTE


SWAPPING = ("preempt_swap", "paper", "swap_or_recompute")  # need room on the host
PRESSURE_POLICIES: Mapping[str, PressurePolicy] = {
    "reject": reject,
    "wait": wait,
    "preempt_recompute": preempt_recompute,
    "preempt_swap": preempt_swap,
    "paper": paper,
    "swap_or_recompute": swap_or_recompute,
}
