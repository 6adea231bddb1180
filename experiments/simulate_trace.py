"""Simulates a trial: the engine's own loop and policies over a virtual clock.

    python -m experiments.simulate_trace --config=configs/trial.py:llama3_8b,h100,sharegpt
    python -m experiments.simulate_trace --config.workload.rate_per_s=1.5 --events=FILE

Each cost profile is a simulation of its own: `ideal` is what the chip's published figures
allow, `calibrated` what was measured or, where a profile says so, assumed. Prints both side
by side and where their costs are from, and writes rows.jsonl and requests.jsonl into the
output folder. Exits with 1 if a request was rejected. Loads no jax.
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
from paxkv.event_log import EventLog
from paxkv.results import ResultsNotWritten, Row, prepare_folder, save_rows, to_line
from paxkv.trials.outcome import trial_row
from paxkv.trials.simulated import blocks_per_group, simulate
from paxkv.trials.trial_config import trial_config

DEFAULT_CONFIG = "configs/trial.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
EVENTS = flags.DEFINE_string(
    "events", None, "A file for the events of the last profile; see inspect_events."
)


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    tree = CONFIG.value.to_dict()
    try:
        trial = trial_config(tree)
        num_blocks = blocks_per_group(trial)
        folder = Path(tree["output_folder"])
        prepare_folder(folder)
        if EVENTS.value:
            prepare_folder(Path(EVENTS.value).parent)
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error
    size = trial.engine.cache.block_size
    print(
        f"simulated: {trial.model.name} on {trial.hardware.num_chips} x "
        f"{trial.hardware.chip}, {trial.router.num_replicas} replicas, each with "
        f"{num_blocks[0] - 1:,} blocks of {size} tokens"
    )

    # --- run
    rows: list[Row] = []
    notes: Sequence[str] = ()
    try:
        with ExitStack() as files:
            requests = None
            if tree["record_requests"]:
                requests = files.enter_context(open(folder / "requests.jsonl", "w"))
            for profile in trial.profiles:
                log = None
                if EVENTS.value and profile == trial.profiles[-1]:
                    log = files.enter_context(
                        EventLog(
                            EVENTS.value, num_blocks_per_group=num_blocks, block_size=size
                        )
                    )

                def write(record: RequestRecord, profile: str = profile) -> None:
                    if requests is not None:
                        line = {"name": trial.name, "profile": profile} | asdict(record)
                        requests.write(to_line(line) + "\n")

                with tqdm(
                    total=trial.workload.num_requests, desc=profile, unit="request"
                ) as bar:
                    outcome = simulate(
                        trial, profile, listener=log, on_ended=bar.update, on_record=write
                    )
                rows.append(trial_row(outcome, tree, "simulate_trace", sys.argv))
                notes = outcome.notes  # the same of all profiles
    except (ValueError, TypeError) as error:
        raise app.UsageError(str(error)) from error
    except OSError as error:
        print(f"FAILED: {folder} was not written: {error}. Set another output folder.")
        return 1

    # --- report: the table first, so that a full disk loses nothing
    print(trial_table(rows))
    for row in rows:
        print(f"Costs of {row['profile']}: {row['costs']}.")
    for note in notes:
        print(f"Workload: {note}")
    try:
        save_rows(folder / "rows.jsonl", rows)
        print(f"Rows were added to {folder / 'rows.jsonl'}.")
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    num_rejected = rows[-1]["metrics"]["num_rejected"]
    if num_rejected:
        print(f"FAILED: {num_rejected} requests were rejected.")
    return int(num_rejected > 0)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
