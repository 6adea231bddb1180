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
    costs: str  # where step times, or of a real run their parts, are from: in words
    pool: Mapping[str, Any]
    metrics: Mapping[str, Any]
    notes: Sequence[str] = ()  # of the workload: what of it was not served as it was asked


def trial_row(
    outcome: TrialOutcome,
    tree: Mapping[str, Any],
    experiment: str,
    argv: Sequence[str],
    *,
    module: str | None = None,
) -> Row:
    """A line of rows.jsonl.

    Args:
      tree: the config, as configs/trial.py gives it.
      argv: of the experiment; its flags are from the second on.
      module: of experiments, that was run; None: it is called as the experiment is.
    """
    is_measured = outcome.kind == "measured"
    program = f"experiments.{module or experiment}"
    info = RunInfo(
        experiment=experiment,
        kind=outcome.kind,
        command=shlex.join(["python", "-m", program, *argv[1:]]),
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
        "costs": outcome.costs,
        "config": tree,
        "pool": outcome.pool,
        "metrics": outcome.metrics,
    }
