"""The classic comparison: contiguous caches against a paged one, under several workloads.

    python -m experiments.compare_caches
    python -m experiments.compare_caches --config.sweep.seeds=0,1,2,3
    python -m experiments.compare_caches --measured

Simulates each cache under each workload and tells how requests arrive and wait, what
growth costs, what is wasted, what a kernel reads beyond the contexts, how many requests
run at once, what is shared and how fast it goes; and of each usual claim, under which
workload it holds. `--measured` adds attention over blocks against attention over one
piece, timed on this machine with 9 heads of queries and 3 of K and V, 64 wide, as
SmolLM-135M has; it needs jax. Rows, page and figures go to config.output_folder.
"""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.reports.classic import EXPERIMENT, read_tokens
from paxkv.analysis.reports.loading import LoadedRows
from paxkv.analysis.reports.sections import report_sections
from paxkv.analysis.reports.text import report_text
from paxkv.analysis.reports.writing import write_report
from paxkv.analysis.request_records import RequestRecord
from paxkv.results import (
    ResultsNotWritten,
    Row,
    RunInfo,
    prepare_folder,
    run_facts,
    save_rows,
)
from paxkv.sweeps.grid import Cell, SweepConfig, make_cells
from paxkv.trials.outcome import trial_row
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import TrialConfig, trial_config

DEFAULT_CONFIG = "configs/compare_caches.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
MEASURED = flags.DEFINE_bool("measured", False, "Times attention on this machine, too.")
BLOCK_SIZES_TIMED = (8, 16, 32)
CONTEXTS_TIMED = (1024, 4096)  # tokens of each of 8 sequences


def run_cell(cell: Cell, trial: TrialConfig, profile: str) -> Row:
    """Simulates one cache under one workload, and counts what its decodes read."""
    read = seen = 0
    block_size = trial.engine.cache.block_size

    def count(record: RequestRecord) -> None:
        nonlocal read, seen
        more = read_tokens(record.num_prompt_tokens, record.num_output_tokens, block_size)
        read, seen = read + more[0], seen + more[1]

    outcome = simulate(trial, profile, on_record=count)
    metrics = dict(outcome.metrics)
    if trial.engine.cache.allocator == "paged":
        metrics |= {"decode_read_tokens": read, "decode_context_tokens": seen}
    counted = replace(outcome, metrics=metrics)
    row = trial_row(counted, cell.config, EXPERIMENT, sys.argv)
    return {**row, "name": cell.name, "cell": cell.labels}


def time_attention() -> list[Row]:
    """Decoding over blocks of several sizes, and over a sequence in one piece."""
    import jax  # only where something is timed

    from pallas_kernels import benchmarking

    implementation = {"cpu": "cpu", "gpu": "gpu", "tpu": "tpu"}[jax.default_backend()]
    info = RunInfo(
        experiment=EXPERIMENT,
        kind="measured",
        command=shlex.join(["python", "-m", "experiments.compare_caches", *sys.argv[1:]]),
        seed=0,
        device=jax.devices()[0].device_kind,
        implementation=implementation,
        matmul_precision="default",
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    facts = run_facts(info)
    rows: list[Row] = []
    sizes = [(c, size) for c in CONTEXTS_TIMED for size in (*BLOCK_SIZES_TIMED, c)]
    for context, block_size in tqdm(sizes, desc="attention", unit="problem"):
        problem = benchmarking.Problem(
            batch=8,
            context=context,
            block_size=block_size,
            dtype="float32",
            num_heads=9,
            kv_heads=3,
            head_dim=64,
            is_prefill=False,
        )
        rows.append(facts | benchmarking.measure(problem, (implementation,), None, 15))
    return rows


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    config = CONFIG.value.to_dict()
    folder = Path(config["output_folder"])
    try:
        cells = make_cells(config, SweepConfig(**config["sweep"]))
        trials = [trial_config(cell.config) for cell in cells]
        prepare_folder(folder)
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    rows: list[Row] = []
    total = sum(len(trial.profiles) for trial in trials)
    try:
        with tqdm(total=total, desc="caches", unit="run") as bar:
            for cell, trial in zip(cells, trials, strict=True):
                bar.set_postfix_str(cell.name)
                for profile in trial.profiles:
                    rows.append(run_cell(cell, trial, profile))
                    bar.update()
        if MEASURED.value:
            rows += time_attention()
    except (ValueError, ImportError) as error:
        raise app.UsageError(str(error)) from error

    # --- report: the tables first, so that a full disk loses nothing
    path = folder / "rows.jsonl"
    loaded = LoadedRows(rows=tuple(rows), failed=(), malformed=(), paths=(path,))
    sections = report_sections(loaded)
    print(report_text(sections), end="\n\n")
    try:
        save_rows(path, rows)
        print(f"Rows were added to {path}.")
        print(write_report(folder, "Contiguous and paged caches", sections))
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    num_rejected = sum(row["metrics"]["num_rejected"] for row in rows if "metrics" in row)
    if num_rejected:
        print(f"FAILED: {num_rejected} requests were rejected, so not all served the same.")
    return int(num_rejected > 0)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
