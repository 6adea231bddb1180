"""What runners of trials share: the trial in a cell's tree, and its metrics."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paxkv.trials.outcome import TrialOutcome
from paxkv.trials.trial_config import TrialConfig, trial_config

NOT_KEPT = ("timeline", "wall_s")  # long, or another number in each run


def trial_of(tree: Mapping[str, Any]) -> TrialConfig:
    """The tree's trial; with `duration_s`, of as many requests as come in that time."""
    trial = trial_config(tree)
    duration_s = tree.get("duration_s")
    return (
        trial
        if duration_s is None
        else at_rate(trial, trial.workload.rate_per_s, duration_s)
    )


def at_rate(
    trial: TrialConfig, rate_per_s: float | int, duration_s: float | int
) -> TrialConfig:
    """The trial at a rate of requests, for so long."""
    num_requests = max(round(rate_per_s * duration_s), 1)
    workload = replace(trial.workload, rate_per_s=rate_per_s, num_requests=num_requests)
    return replace(trial, workload=workload)


def metrics_of(outcome: TrialOutcome) -> dict[str, Any]:
    """The part of an outcome that a figure compares."""
    kept = {key: each for key, each in outcome.metrics.items() if key not in NOT_KEPT}
    return {**kept, "pool": outcome.pool, "costs": outcome.costs}


def whole_blocks(num_tokens: int, block_size: int) -> int:
    """How many blocks the tokens fill.

    Raises:
      ValueError: the last one would not be full.
    """
    num_blocks, rest = divmod(num_tokens, block_size)
    if rest:
        raise ValueError(
            f"{num_tokens=} are no whole blocks of {block_size} tokens; use a multiple."
        )
    return num_blocks
