"""One real trial: the config's model on the device that jax has.

Of the tree it reads, beside the trial, `duration_s` as in a simulation.
"""

from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.runners.trials import metrics_of, trial_of
from paxkv.trials.measured import serve

KIND = "measured"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    del profile  # its times are real
    outcome = serve(trial_of(tree))
    return metrics_of(outcome) | {"device": outcome.device}
