"""The runs of a results folder: each row with the requests that belong to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.analysis.diagnosis.advice import Evidence
from paxkv.analysis.diagnosis.floors import Floor, floor_of_cost_model, floor_of_records
from paxkv.analysis.diagnosis.knobs import RUNNING_PEAK
from paxkv.analysis.request_records import RequestRecord, read_records
from paxkv.results import SCHEMA_VERSION, Row, rows_by
from paxkv.simulation.cost_models import build_cost_model
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import TrialConfig, trial_config

EXPERIMENTS = ("simulate_trace", "serve_trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One trial by one profile; `records` are those that the row's metrics count."""

    row: Row
    records: tuple[RequestRecord, ...]

    @property
    def config(self) -> dict[str, Any]:
        """The row's, and beside it what knobs must know of the run."""
        return {**self.row["config"], RUNNING_PEAK: self.row["metrics"]["running_peak"]}

    @property
    def evidence(self) -> Evidence:
        return Evidence(config=self.config, metrics=self.row["metrics"])

    @property
    def profile(self) -> str:
        """Of the simulation that has the run's device: its own, or for a real run the
        calibrated one."""
        return self.row["profile"] if self.row["kind"] == "simulated" else "calibrated"

    def slo_s(self, metric: str, percent: int) -> float | None:
        """What was promised at this percentile; None: nothing was."""
        slo = self.row["config"]["slo"]
        return slo[f"{metric}_s"] if slo["percentile"] == percent else None


def read_runs(folder: Path) -> list[Run]:
    """Of the newest rows of each name and profile; requests.jsonl keeps only the last run.

    Raises:
      ValueError: the folder has no such rows or requests, or they are of another version
        or of another run.
    """
    rows = rows_by(
        lambda row: (row["experiment"], row["name"], row["profile"]), folder / "rows.jsonl"
    )
    rows = {
        (name, profile): row
        for (kind, name, profile), row in rows.items()
        if kind in EXPERIMENTS
    }
    if not rows:
        raise ValueError(
            f"{folder} has no rows of {' or '.join(EXPERIMENTS)}; run one of them with "
            f"--config.output_folder={folder}."
        )
    records: dict[tuple[str, str], list[RequestRecord]] = {}
    try:
        for others, record in read_records(folder / "requests.jsonl"):
            key = others.get("name", ""), others.get("profile", "")
            records.setdefault(key, []).append(record)
    except FileNotFoundError:
        raise ValueError(
            f"{folder / 'requests.jsonl'} is not there; run the trial again with "
            "--config.record_requests=True."
        ) from None
    runs = [_run(folder, row, records[key]) for key, row in rows.items() if key in records]
    if not runs:
        raise ValueError(
            f"{folder}: its requests are of {sorted(records)}, its rows of {sorted(rows)}; "
            "run the trial again."
        )
    return runs


def simulated_records(trial: TrialConfig, profile: str) -> list[RequestRecord]:
    """Simulates a trial; the requests that its metrics count."""
    records: list[RequestRecord] = []
    simulate(trial, profile, on_record=records.append)
    measure = trial.measure
    return _counted(records, measure.from_s, measure.until_s)


def simulator(profile: str) -> Callable[[Mapping[str, Any]], list[RequestRecord]]:
    """From the tree of a trial to its requests, by one profile."""
    return lambda tree: simulated_records(trial_of(tree), profile)


def trial_of(tree: Mapping[str, Any]) -> TrialConfig:
    """Of a row's config, in which JSON made lists of tuples.

    Raises:
      ValueError, TypeError: it is no config of this version.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        return tuple(value) if isinstance(value, list) else value

    return trial_config(plain(tree))


def floor_of(run: Run) -> Floor:
    """Of the cost model that the run is known by; of its own requests where there is none.

    Raises:
      ValueError: the row's config is not one of this version.
    """
    trial = trial_of(run.row["config"])
    budget = trial.engine.scheduler.max_num_batched_tokens
    calibration = Path(trial.hardware.calibration or "")
    if run.row["kind"] != "simulated" and not calibration.is_file():
        return floor_of_records(run.records, budget_tokens=budget)
    cache = trial.engine.cache
    cost_model = build_cost_model(
        run.profile,
        trial.hardware,
        trial.model,
        block_size=cache.block_size,
        kv_dtype=cache.dtype,
        max_num_seqs=trial.engine.scheduler.max_num_seqs,
        max_num_batched_tokens=budget,
    )
    return floor_of_cost_model(
        cost_model,
        block_size=cache.block_size,
        windows=trial.model.group_windows,
        budget_tokens=budget,
    )


def _run(folder: Path, row: Row, records: list[RequestRecord]) -> Run:
    if row["schema"] != SCHEMA_VERSION:
        raise ValueError(
            f"{folder / 'rows.jsonl'} is of schema {row['schema']}, and schema "
            f"{SCHEMA_VERSION} can be read; run the trial again."
        )
    measure = row["config"]["measure"]
    counted = _counted(records, measure["from_s"], measure["until_s"])
    metrics = row["metrics"]
    ended = sum(metrics[f"num_{how}"] for how in ("finished", "rejected", "aborted"))
    if ended != len(counted):
        raise ValueError(
            f"{folder}: the newest row {row['name']!r} counts {ended} requests, "
            f"requests.jsonl has {len(counted)} of them; run the trial again, one at a "
            "time in a folder."
        )
    return Run(row=row, records=tuple(counted))


def _counted(
    records: list[RequestRecord], from_s: float | int, until_s: float | int | None
) -> list[RequestRecord]:
    """Those that arrive within what is measured."""
    return [
        record
        for record in records
        if record.arrival_s >= from_s and (until_s is None or record.arrival_s <= until_s)
    ]
