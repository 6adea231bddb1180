"""Runs every cell of a grid as a process of its own, and goes on where it was stopped.

    python -m experiments.sweep --config=configs/ablations/block_size.py
    python -m experiments.sweep --config=configs/ablations/eviction.py --dry_run
    python -m experiments.sweep --config=... --config.workload.num_requests=50 --workers=2
    python -m experiments.sweep --config=... --executor=ray --address=auto

The config is a trial's with `sweep`: kind, grid, choices and seeds (paxkv/sweeps/grid.py).
Overrides hold for all cells. Cells that are done are skipped, so the same command resumes
a sweep however it ended. Adds rows (JSONL) to <output_folder>/rows.jsonl, with each cell's
own files in <output_folder>/cells. Exits with 1 if any cell has failed.
"""

import os
import shlex
import sys
from functools import partial
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.results import ResultsNotWritten, RunInfo, run_facts
from paxkv.sweeps.cells import Outcome
from paxkv.sweeps.grid import SweepConfig, make_cells
from paxkv.sweeps.local import run_local
from paxkv.sweeps.ray_tasks import require_ray, run_on_ray
from paxkv.sweeps.running import cells_to_run, job_of, run_sweep
from paxkv.sweeps.table import FAILED, claimed, read_table, require_ours

DEFAULT_CONFIG = "configs/ablations/block_size.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
WORKERS = flags.DEFINE_integer(
    "workers",
    None,
    "Cells at once; default: 1 if they are measured, else as many as there are cores.",
    lower_bound=1,
)
EXECUTOR = flags.DEFINE_enum("executor", "local", ["local", "ray"], "Where cells run.")
ADDRESS = flags.DEFINE_string(
    "address", None, "Of a Ray cluster; default: one of this machine, for this sweep."
)
DRY_RUN = flags.DEFINE_boolean("dry_run", False, "Lists the cells, and runs none.")
RETRY_FAILED = flags.DEFINE_boolean("retry_failed", True, "Runs failed cells again.")


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    config = CONFIG.value.to_dict()
    flag = flags.FLAGS["config"]
    config_file = config_flags.get_config_filename(flag)
    own_file = os.path.relpath(config_file.partition(":")[0])
    given = {
        key: value
        for key, value in config_flags.get_override_values(flag).items()
        if key != "output_folder" and not key.startswith("sweep.")
    }
    if "sweep" not in config:
        raise app.UsageError(f"{config_file} has no sweep; see {DEFAULT_CONFIG}.")
    if not config["output_folder"]:
        raise app.UsageError("config.output_folder is empty; name a folder.")
    if ADDRESS.value and EXECUTOR.value != "ray":
        raise app.UsageError(f"--address={ADDRESS.value} needs --executor=ray.")
    folder = Path(config["output_folder"])
    try:
        sweep = SweepConfig(**config["sweep"])
        cells = make_cells(config, sweep, given)
        if EXECUTOR.value == "ray":
            require_ray()
    except (ValueError, TypeError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    make_job = partial(job_of, config_file=config_file, given=given, folder=folder)

    # --- list
    if DRY_RUN.value:
        try:
            require_ours(folder, own_file)
            table = read_table(folder)
        except ValueError as error:
            raise app.UsageError(str(error)) from error
        for cell in cells:
            job = make_job(cell)
            print(f"{cell.cell_id}  {table.status(cell.cell_id) or 'to run':6}  ", end="")
            print(f"seed {cell.seed}  {cell.name}")
            print(f"    python -m {job.module} {shlex.join(job.arguments)}")
        todo = cells_to_run(cells, table, retry_failed=RETRY_FAILED.value)
        print(f"{len(cells)} cells of {own_file}, {len(todo)} to run.")
        return 0

    # --- run
    num_workers = WORKERS.value or (1 if sweep.kind == "measured" else os.cpu_count() or 1)
    info = RunInfo(
        experiment="sweep",
        kind=sweep.kind,
        command=shlex.join(["python", "-m", "experiments.sweep", *sys.argv[1:]]),
        seed=0,  # each cell has its own
        device="unknown",
        implementation="unknown",
        matmul_precision=config["engine"]["matmul_precision"],
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    execute = partial(run_local, num_workers=num_workers)
    if EXECUTOR.value == "ray":
        execute = partial(run_on_ray, num_workers=num_workers, address=ADDRESS.value)
    try:
        with claimed(folder, own_file) as table:
            todo = cells_to_run(cells, table, retry_failed=RETRY_FAILED.value)
            num_before = len(cells) - len(todo)
            if num_before:
                print(f"{num_before} of {len(cells)} cells have run before.")
            with tqdm(
                total=len(cells), initial=num_before, desc="sweep", unit="cell"
            ) as bar:

                def on_outcome(outcome: Outcome) -> None:
                    if outcome.error is not None:
                        tail = outcome.error.strip().splitlines()[-1]
                        bar.write(f"cell {outcome.cell_id} failed: {tail}")
                    bar.update()

                run_sweep(
                    todo,
                    [make_job(cell) for cell in todo],
                    table,
                    execute,
                    facts=run_facts(info),
                    on_outcome=on_outcome,
                )
    except ResultsNotWritten as error:
        print(f"FAILED: {error} Finished cells are safe; the same command goes on.")
        return 1
    except (ValueError, ConnectionError) as error:
        raise app.UsageError(str(error)) from error
    except KeyboardInterrupt:
        print("Interrupted. Finished cells are safe; the same command goes on.")
        return 130  # what a shell has for ctrl-C

    # --- report
    failed = [cell for cell in cells if table.status(cell.cell_id) == FAILED]
    print(f"{len(cells) - len(failed)} of {len(cells)} cells are done: {table.path}")
    for cell in failed:
        print(f"\nFAILED: {cell.name}, seed {cell.seed}, {folder / 'cells' / cell.cell_id}")
        print(table.failures[cell.cell_id])
    return int(bool(failed))


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
