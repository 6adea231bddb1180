"""One simulated trial.

Of the tree it reads, beside the trial, `duration_s` (the trace's; then num_requests follows
from the rate) and `stop_at_s` (of the virtual clock; requests in flight count nowhere).
"""

import math
from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.runners.trials import metrics_of, trial_of
from paxkv.trials.simulated import simulate

KIND = "simulated"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    stop_at_s = tree.get("stop_at_s")
    limit = math.inf if stop_at_s is None else stop_at_s
    return metrics_of(simulate(trial_of(tree), profile, stop_at_s=limit))
