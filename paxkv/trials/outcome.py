"""What a trial came to, and its line in rows.jsonl."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paxkv.results import Row, RunInfo, run_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """The parts of a row that differ between trials."""

    kind: str  # measured or simulated
    device: str
    implementation: str  # of the kernels
    profile: str  # of costs; "measured" of a real run
    pool: Mapping[str, Any]
    metrics: Mapping[str, Any]


def trial_row(
    outcome: TrialOutcome, tree: Mapping[str, Any], experiment: str, argv: Sequence[str]
) -> Row:
    """A line of rows.jsonl.

    Args:
      tree: the config, as configs/trial.py gives it.
      argv: of the experiment; its flags are from the second on.
    """
    is_measured = outcome.kind == "measured"
    info = RunInfo(
        experiment=experiment,
        kind=outcome.kind,
        command=shlex.join(["python", "-m", f"experiments.{experiment}", *argv[1:]]),
        seed=tree["workload"]["seed"],
        device=outcome.device,
        implementation=outcome.implementation,
        matmul_precision=tree["engine"]["matmul_precision"] if is_measured else "none",
        xla_flags=os.environ.get("XLA_FLAGS", "") if is_measured else "",
    )
    return {
        **run_facts(info),
        "name": tree["name"],
        "profile": outcome.profile,
        "config": tree,
        "pool": outcome.pool,
        "metrics": outcome.metrics,
    }
