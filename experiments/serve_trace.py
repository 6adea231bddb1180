"""Serves a trial really: the config of simulate_trace, with a model on this device.

    python -m experiments.serve_trace --config=configs/local.py
    python -m experiments.serve_trace --config=configs/local.py --score_keys

Requests come at the workload's times on the engine's clock; idle time is skipped. Prints
the same table as simulate_trace and writes the same files, and with `config.record_steps`
steps.jsonl for experiments.calibrate. How a step's time splits into prefill and decode is
estimated by a cost model that is fitted to the run's own steps. Exits with 1 if a request
was rejected.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.request_records import RequestRecord
from paxkv.analysis.trial_table import trial_table
from paxkv.results import ResultsNotWritten, prepare_folder, save_rows, to_line
from paxkv.simulation.step_records import StepRecord, write_steps
from paxkv.trials.measured import serve
from paxkv.trials.outcome import trial_row
from paxkv.trials.trial_config import trial_config

DEFAULT_CONFIG = "configs/local.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
SCORE_KEYS = flags.DEFINE_bool(
    "score_keys", False, "Prompts of the recall task; the share of right answers is told."
)


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    tree = CONFIG.value.to_dict()
    try:
        trial = trial_config(tree)
        folder = Path(tree["output_folder"])
        prepare_folder(folder)
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    def keep_steps(steps: Sequence[StepRecord]) -> None:
        if tree["record_steps"]:
            (folder / "steps.jsonl").unlink(missing_ok=True)
            write_steps(folder / "steps.jsonl", steps)

    try:
        with ExitStack() as files:
            requests = None
            if tree["record_requests"]:
                requests = files.enter_context(open(folder / "requests.jsonl", "w"))

            def write(record: RequestRecord) -> None:
                if requests is not None:
                    line = {"name": trial.name, "profile": "measured"} | asdict(record)
                    requests.write(to_line(line) + "\n")

            bar = files.enter_context(
                tqdm(total=trial.workload.num_requests, desc="serve", unit="request")
            )
            outcome = serve(
                trial,
                score_keys=SCORE_KEYS.value,
                on_ended=bar.update,
                on_record=write,
                on_steps=keep_steps,
            )
    except (ValueError, TypeError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    except OSError as error:
        print(f"FAILED: {folder} was not written: {error}. Set another output folder.")
        return 1

    # --- report: the table first, so that a full disk loses nothing
    row = trial_row(outcome, tree, "serve_trace", sys.argv)
    print(f"measured: {tree['engine']['model']} on {outcome.device}")
    print(trial_table([row]))
    for note in outcome.notes:
        print(f"Workload: {note}")
    metrics = outcome.metrics
    if "recall_right" in metrics:
        print(f"keys: {metrics['recall_right']} of {metrics['recall_answered']} are right")
    try:
        save_rows(folder / "rows.jsonl", [row])
        print(f"The row was added to {folder / 'rows.jsonl'}.")
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    if metrics["num_rejected"]:
        print(f"FAILED: {metrics['num_rejected']} requests were rejected.")
    return int(metrics["num_rejected"] > 0)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
