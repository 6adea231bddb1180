"""Rows of `experiments.capacity`: a run at a rate as an attempt, a search as metrics."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxkv.analysis.capacity import Attempt, Capacity
from paxkv.analysis.diagnosis.knobs import with_changes
from paxkv.results import Row, to_line
from paxkv.workloads.arrivals import WITH_RATE

RUN, CAPACITY = "capacity_run", "capacity"  # experiments of the rows
TRACE_RATE = "times the trace's rate"
_UNLIKE = ("name", "profiles", "output_folder", "record_requests", "record_steps")


def rate_key(tree: Mapping[str, Any]) -> str:
    """The dotted key that scales a trial's load.

    Raises:
      ValueError: its arrivals have no rate.
    """
    arrival = tree["workload"]["arrival"]
    if arrival in WITH_RATE:
        return "workload.rate_per_s"
    if arrival == "trace":
        return "workload.rate_scale"
    raise ValueError(
        f"workload.arrival={arrival!r} has no rate that could be raised; use "
        f"{', '.join(WITH_RATE)} or, of a trace, 'trace'."
    )


def rate_unit(tree: Mapping[str, Any]) -> str:
    """What the numbers at that key count."""
    if rate_key(tree) == "workload.rate_scale":
        return TRACE_RATE
    has_turns = tree["workload"]["structure"] in ("chat", "agents")
    return "sessions/s" if has_turns else "requests/s"


def tree_at(
    tree: Mapping[str, Any], rate_per_s: float, seed: int | None = None
) -> dict[str, Any]:
    """The trial at another rate and, unless it is None, seed."""
    changes: dict[str, Any] = {rate_key(tree): rate_per_s}
    if seed is not None:
        changes["workload.seed"] = seed
    return with_changes(tree, changes)


def row_key(
    experiment: str, kind: str, profile: str, tree: Mapping[str, Any]
) -> tuple[str, ...]:
    """What makes two runs the same one: all of the config but what it writes."""
    plain = json.loads(to_line({k: v for k, v in tree.items() if k not in _UNLIKE}))
    return experiment, kind, profile, json.dumps(plain, sort_keys=True)


def key_of(row: Row) -> tuple[str, ...]:
    """The same of a row that was written."""
    return row_key(row["experiment"], row["kind"], row["profile"], row["config"])


def attempt_of(row: Row) -> Attempt:
    """Whether a run met the SLO, and the latencies that decided it."""
    slo = row["metrics"]["slo"]
    part, _, key = rate_key(row["config"]).partition(".")
    found = {
        f"p{slo['percentile']:g} {name.upper()}": slo[f"{name}_found_s"]
        for name in ("ttft", "tpot")
    }
    return Attempt(
        rate_per_s=row["config"][part][key],
        is_met=slo["is_met"],
        latency_s={name: s for name, s in found.items() if _is_number(s)},
    )


def capacity_metrics(capacity: Capacity, runs: Sequence[Row]) -> dict[str, Any]:
    """Of a search; `runs` are those of its rates."""
    goodput = {attempt_of(row).rate_per_s: row["metrics"]["slo"] for row in runs}
    at_capacity = goodput.get(capacity.rate_per_s)
    return {
        "capacity_per_s": capacity.rate_per_s,
        "missed_per_s": capacity.missed_per_s,
        "largest_met_per_s": capacity.largest_met_per_s,
        "is_monotone": capacity.is_monotone,
        "outcome": capacity.outcome.name,
        "goodput_per_s": at_capacity["goodput_per_s"] if at_capacity else 0.0,
        "tried": [
            {"rate_per_s": o.rate_per_s, "is_met": o.is_met, "latency_s": dict(o.latency_s)}
            for o in capacity.tried
        ],
    }


def tried_table(capacity: Capacity) -> str:
    """A line a rate, in order."""
    names = list(dict.fromkeys(name for o in capacity.tried for name in o.latency_s))
    lines = [f"{'rate':>9}" + "".join(f"{name + ', s':>15}" for name in names) + "  SLO"]
    for one in capacity.tried:
        cells = "".join(f"{one.latency_s.get(name, math.nan):>15.4g}" for name in names)
        lines.append(f"{one.rate_per_s:>9.4g}{cells}  {'met' if one.is_met else 'missed'}")
    return "\n".join(lines)


def seeds_line(label: str, rates_per_s: Sequence[float]) -> str:
    """Mean and range over seeds."""
    mean, count = float(np.mean(rates_per_s)), len(rates_per_s)
    low, high = min(rates_per_s), max(rates_per_s)
    over = f"{count} seeds" if count > 1 else "1 seed"
    return f"{label}: {mean:.4g} (range {low:.4g} to {high:.4g}, {over})"


def _is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)
