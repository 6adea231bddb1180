"""Compares the simulator with real runs on this machine.

    python -m experiments.validate_simulator

Runs the engine with ShareGPT's lengths and fits step costs to what it recorded; then runs
and simulates other lengths at 85 % load, seed by seed in turns, and some policies under
overload. Prints the error of each latency beside the spread of the real runs, and Kendall's
tau of both rankings. Exits with 1 if an error is above 10 % or tau below 0.9.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from absl import app, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.validation import prediction_table, predictions, rank_agreement
from paxkv.platform import current_device
from paxkv.results import ResultsNotWritten, Row, prepare_folder, save_rows
from paxkv.simulation.calibration import fit_calibration, with_total_of
from paxkv.simulation.measured_model import save_calibration
from paxkv.simulation.step_records import StepRecord
from paxkv.trials.measured import serve
from paxkv.trials.outcome import trial_row
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import TrialConfig, trial_config

DEFAULT_CONFIG = "configs/validate_simulator.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
LARGEST_ERROR_PERCENT = 10.0
LEAST_TAU = 0.9
OVERLOAD = 2.0  # times the rate that can be served


def fit(trial: TrialConfig, rates: tuple[float, ...], path: Path, bar: tqdm) -> TrialConfig:
    """The trial with a calibration from runs of its own workload at these rates."""
    steps: list[StepRecord] = []
    for seed, rate_per_s in enumerate(rates):
        workload = replace(trial.workload, rate_per_s=rate_per_s, seed=100 + seed)
        serve(replace(trial, workload=workload), on_steps=steps.extend)
        bar.update()
    scheduler = trial.engine.scheduler
    fitted = fit_calibration(
        steps,
        {},
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        device=current_device().name,
        model=trial.engine.model,
        facts={},
    )
    save_calibration(path, with_total_of(fitted, steps))
    return replace(trial, hardware=replace(trial.hardware, calibration=str(path)))


def with_policy(trial: TrialConfig, policy: str) -> TrialConfig:
    """One field of the scheduler's config replaced: `name=value`."""
    name, _, text = policy.partition("=")
    value: Any = int(text) if text.isdecimal() else text
    scheduler = replace(trial.engine.scheduler, **{name: value})
    engine = replace(trial.engine, scheduler=scheduler)
    return replace(trial, engine=engine, name=f"{trial.name},{policy}")


def in_turns(
    trial: TrialConfig, seeds: tuple[int, ...], tree: Mapping[str, Any], bar: tqdm
) -> tuple[list[Row], list[Row]]:
    """Rows of real and simulated runs of each seed."""
    real, simulated = [], []
    for seed in seeds:
        one = replace(trial, workload=replace(trial.workload, seed=seed))
        for rows, outcome in (
            (real, serve(one)),
            (simulated, simulate(one, "calibrated")),
        ):
            ran = {
                **tree,
                "name": one.name,
                "hardware": asdict(one.hardware),
                "scheduler": asdict(one.engine.scheduler),
                "workload": asdict(one.workload),
            }
            rows.append(trial_row(outcome, ran, "validate_simulator", sys.argv))
        bar.update()
    return real, simulated


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse
    tree: dict[str, Any] = CONFIG.value.to_dict()
    wanted: Mapping[str, Any] = tree["validate"]
    folder = Path(tree["output_folder"])
    try:
        prepare_folder(folder)
        trial = trial_config(tree)
        held_out = replace(
            trial.workload,
            lengths=wanted["lengths"],
            input_tokens=wanted["input_tokens"],
            output_tokens=wanted["output_tokens"],
            too_long="clip",
        )
        policies = {name: with_policy(trial, name) for name in wanted["policies"]}
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    seeds, rates = tuple(wanted["seeds"]), tuple(wanted["fit_rates_per_s"])
    total = len(rates) + 1 + len(seeds) * (1 + len(policies))
    rows: list[Row] = []
    with tqdm(total=total, desc="validate", unit="run") as bar:
        trial = fit(trial, rates, folder / "calibration.json", bar)
        at_once = replace(held_out, arrival="at_once", seed=seeds[0])
        full = serve(replace(trial, workload=at_once)).metrics
        bar.update()
        served_per_s = full["num_finished"] / full["duration_s"]
        loaded = replace(held_out, rate_per_s=wanted["load"] * served_per_s)
        real, simulated = in_turns(replace(trial, workload=loaded), seeds, tree, bar)
        rows += [*real, *simulated]
        overloaded = replace(held_out, rate_per_s=OVERLOAD * served_per_s)
        ranked: dict[str, tuple[float, float]] = {}
        for name, policy in policies.items():
            one = replace(policy, workload=overloaded, hardware=trial.hardware)
            pair = in_turns(one, seeds, tree, bar)
            rows += [*pair[0], *pair[1]]
            latencies = [
                median(row["metrics"]["normalized_latency_s"] for row in some)
                for some in pair
            ]
            ranked[name] = (latencies[0], latencies[1])

    # --- report
    found = predictions(
        [row["metrics"] for row in real], [row["metrics"] for row in simulated]
    )
    print(f"at {loaded.rate_per_s:.1f} requests/s, {100 * wanted['load']:.0f} % load:")
    print(prediction_table(found))
    tau = rank_agreement(*(list(column) for column in zip(*ranked.values(), strict=True)))
    print("\nnormalised latency under overload, s a token: measured, simulated")
    for name, (mine, theirs) in sorted(ranked.items(), key=lambda item: item[1][0]):
        print(f"  {name:<28} {mine:.4f}  {theirs:.4f}")
    print(f"Kendall's tau {tau:.2f}")
    try:
        save_rows(folder / "rows.jsonl", rows)
        print(f"Rows were added to {folder / 'rows.jsonl'}.")
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    wrong = [one.name for one in found if abs(one.error_percent) > LARGEST_ERROR_PERCENT]
    if wrong:
        print(f"FAILED: more than {LARGEST_ERROR_PERCENT:.0f} % off: {', '.join(wrong)}")
    if not tau >= LEAST_TAU:
        print(f"FAILED: tau is {tau:.2f}, not ≥ {LEAST_TAU}")
    return int(bool(wrong) or not tau >= LEAST_TAU)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
