"""The largest rate of requests at which a trial meets its SLO, by bisection over runs.

    python -m experiments.capacity --config=configs/trial.py:llama3_8b,h100 --seeds=0,1,2
    python -m experiments.capacity --config.slo.ttft_s=0.5 --config.slo.percentile=95
    python -m experiments.capacity --config=... --kind=measured

Doubles or halves the rate until the capacity is bracketed, then bisects; one more rate
beyond is tried, because near its capacity a service may miss one rate and meet the next.
Of a trace, the rate is `workload.rate_scale`, a multiple of its own. A run must be long
enough for a queue to grow: the fewer its requests, the higher the rate that it survives.

Each run is a row of rows.jsonl in the output folder when it ends, and is not run again: the
same command resumes a search. Exits with 1 if no rate meets the SLO. Loads jax only for
`--kind=measured`.
"""

import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.capacity import Attempt, Capacity, Outcome, find_capacity
from paxkv.analysis.capacity_rows import (
    CAPACITY,
    RUN,
    TRACE_RATE,
    attempt_of,
    capacity_metrics,
    key_of,
    rate_unit,
    row_key,
    seeds_line,
    tree_at,
    tried_table,
)
from paxkv.results import ResultsNotWritten, Row, append_row, prepare_folder, rows_by
from paxkv.trials.outcome import TrialOutcome, trial_row
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import TrialConfig, trial_config

DEFAULT_CONFIG = "configs/trial.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
KIND = flags.DEFINE_enum("kind", "simulated", ["simulated", "measured"], "Of the runs.")
SEEDS = flags.DEFINE_list("seeds", ["0"], "Of the workload; a search for each.")
START = flags.DEFINE_float("start", 1.0, "The first rate, as the workload counts it.")
LOWEST = flags.DEFINE_float("lowest", 2**-10, "The lowest rate worth trying.")
HIGHEST = flags.DEFINE_float("highest", 2**14, "The highest.")
TOLERANCE = flags.DEFINE_float("tolerance", 0.02, "Between the two ends, relative.")

Run = Callable[[TrialConfig, str, Callable[[int], object]], TrialOutcome]


def runner() -> Run:
    """Simulates a trial, or serves it."""
    if KIND.value == "simulated":
        return lambda trial, profile, ended: simulate(trial, profile, on_ended=ended)
    from paxkv.trials.measured import serve

    return lambda trial, profile, ended: serve(trial, on_ended=ended)


def search(
    tree: Mapping[str, Any], profile: str, rows: dict[Any, Row], path: Path, run: Run
) -> tuple[Capacity, list[Row]]:
    """Bisects; the rows of its runs, which are added to `rows` and the file."""
    used: list[Row] = []

    def attempt(rate_per_s: float) -> Attempt:
        wanted = tree_at(tree, rate_per_s)
        key = row_key(RUN, KIND.value, profile, wanted)
        if key not in rows:
            trial = trial_config(wanted)
            label = f"{profile}, seed {trial.workload.seed}, rate {rate_per_s:.4g}"
            total = trial.workload.num_requests
            with tqdm(total=total, desc=label, unit="request", leave=False) as bar:
                outcome = run(trial, profile, bar.update)
            row = trial_row(outcome, wanted, RUN, sys.argv, module=CAPACITY)
            append_row(path, row)
            rows[key] = row
        used.append(rows[key])
        return attempt_of(rows[key])

    capacity = find_capacity(
        attempt,
        start_per_s=START.value,
        lowest_per_s=LOWEST.value,
        highest_per_s=HIGHEST.value,
        tolerance=TOLERANCE.value,
    )
    return capacity, used


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    tree = CONFIG.value.to_dict()
    seeds = entry.integers(SEEDS)
    try:
        trees = [tree_at(tree, START.value, seed) for seed in seeds]
        trials = [trial_config(one) for one in trees]
        folder = Path(tree["output_folder"])
        prepare_folder(folder)
        path = folder / "rows.jsonl"
        rows = rows_by(key_of, path)
        run = runner()
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error
    slo, unit = trials[0].slo, rate_unit(tree)
    print(
        f"{KIND.value}: {tree['name']}; p{slo.percentile:g} of TTFT within "
        f"{slo.ttft_s:g} s and of TPOT within {slo.tpot_s:g} s, "
        f"over {trials[0].workload.num_requests} requests a run"
    )

    # --- search, and write each run when it ends
    profiles = trials[0].profiles if KIND.value == "simulated" else ("measured",)
    found: dict[str, list[Capacity]] = {profile: [] for profile in profiles}
    for profile, one in itertools.product(profiles, trees):
        try:
            capacity, used = search(one, profile, rows, path, run)
            metrics = capacity_metrics(capacity, used)
            key = row_key(CAPACITY, KIND.value, profile, one)
            if key not in rows or rows[key]["metrics"] != metrics:
                last = used[-1]
                outcome = TrialOutcome(
                    kind=KIND.value,
                    device=last["device"],
                    implementation=last["implementation"],
                    profile=profile,
                    costs=last.get("costs", ""),  # runs of an earlier version lack it
                    pool=last["pool"],
                    metrics=metrics,
                )
                row = trial_row(outcome, one, CAPACITY, sys.argv)
                append_row(path, row)
                rows[key] = row
        except ResultsNotWritten as error:
            print(f"FAILED: {error} Finished runs are safe; the same command goes on.")
            return 1
        except (ValueError, TypeError) as error:
            raise app.UsageError(str(error)) from error
        found[profile].append(capacity)
        words = capacity.words(f" {unit}" if unit == TRACE_RATE else "/s")
        print(f"\n{profile}, seed {one['workload']['seed']}: {words}")
        print(tried_table(capacity))

    # --- report
    print()
    for profile, capacities in found.items():
        label = f"{profile}: capacity, {unit}"
        print(seeds_line(label, [capacity.rate_per_s for capacity in capacities]))
    print(f"Rows were added to {path}.")
    everywhere = [capacity for capacities in found.values() for capacity in capacities]
    return int(any(one.outcome is Outcome.NO_RATE for one in everywhere))


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
