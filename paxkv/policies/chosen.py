"""The policies that a scheduler was given."""

from dataclasses import dataclass, field

from paxkv.config import SchedulerConfig
from paxkv.policies.admission import (
    ADMISSION_POLICIES,
    AdmissionPolicy,
    Reserve,
    Watermark,
)
from paxkv.policies.naming import policy_named
from paxkv.policies.pressure import (
    PRESSURE_POLICIES,
    PressurePolicy,
    RelocationCosts,
    reject,
)
from paxkv.policies.scheduling import (
    SCHEDULING_POLICIES,
    SchedulingPolicy,
    fcfs,
    priority,
    shortest_prefill,
    swapped_first,
)
from paxkv.policies.victim import VICTIM_POLICIES, VictimPolicy
from paxkv.served import ServedTokens
from paxkv.types import FinishReason

# What the words of `SchedulerConfig.retain` mean, but for preemption.
ENDS_OF_OUTCOME = {
    "completed": (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH),
    "cancelled": (FinishReason.ABORTED,),
    "failed": (FinishReason.DROPPED_POOL_FULL,),
}
PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """One of each family that a scheduler asks."""

    victim: VictimPolicy
    pressure: PressurePolicy
    admission: AdmissionPolicy
    scheduling: SchedulingPolicy
    costs: RelocationCosts = field(default_factory=RelocationCosts)
    retained: frozenset[FinishReason] = frozenset()
    retains_preempted: bool = True
    served: ServedTokens = field(default_factory=ServedTokens)  # what fairness goes by

    @property
    def by_priority(self) -> bool:
        """Priority goes before age, in the queue and in protection from preemption."""
        return self.scheduling is priority

    @property
    def sheds_load(self) -> bool:
        """Requests that find no room when they come are refused."""
        return self.pressure is reject

    @property
    def head_waits_for_blocks(self) -> bool:
        """Who is first in the queue and finds no room stays first, and finds none before
        blocks are given back or another request comes."""
        steady = (fcfs, priority, swapped_first, shortest_prefill)
        return (
            self.scheduling in steady
            # not a subclass of a user, which may learn or look at the time
            and type(self.admission) in (Watermark, Reserve)
            and not self.sheds_load
        )

    def retains(self, reason: FinishReason) -> bool:
        return reason in self.retained


def policies_of(config: SchedulerConfig, num_blocks: int) -> Policies:
    """Those that a config names, for a pool of so many blocks."""
    admission = policy_named(config.admission, ADMISSION_POLICIES, "admission policy")
    return Policies(
        victim=policy_named(config.victim, VICTIM_POLICIES, "victim policy"),
        pressure=policy_named(config.pressure, PRESSURE_POLICIES, "pressure policy"),
        admission=admission(num_blocks, config.watermark),
        scheduling=policy_named(
            config.scheduling, SCHEDULING_POLICIES, "scheduling policy"
        ),
        costs=RelocationCosts(
            swap_s_per_block=config.swap_s_per_block,
            recompute_s_per_token=config.recompute_s_per_token,
        ),
        retained=frozenset(
            reason
            for name in config.retain
            if name in ENDS_OF_OUTCOME
            for reason in ENDS_OF_OUTCOME[name]
        ),
        retains_preempted=PREEMPTED in config.retain,
    )
