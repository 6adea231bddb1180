"""A sweep of fake cells, as calls for the tests and as a program that they can kill.

python -m tests.paxkv.sweeps.fake_sweep FOLDER NUM_WORKERS GRID FIXED
"""

import ast
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from paxkv.sweeps.cells import Job
from paxkv.sweeps.grid import Cell, SweepConfig, flat, make_cells, nested
from paxkv.sweeps.local import run_local
from paxkv.sweeps.running import Executor, cells_to_run, job_of, run_sweep
from paxkv.sweeps.table import Table, claimed
from tests.paxkv.sweeps.fake_cell import CONFIG

CONFIG_FILE = "configs/ablations/fake.py"
FACTS = {"experiment": "sweep", "schema": 1}


def fake_cells(grid: dict, *, seeds: tuple[int, ...] = (0,), **fixed) -> list[Cell]:
    """`grid` and `fixed` have dotted keys; `fixed` those of `fake`."""
    fakes = {f"fake.{key}": value for key, value in fixed.items()}
    config = nested({**flat(CONFIG), **fakes})
    sweep = SweepConfig(kind="simulated", seeds=seeds, grid=nested(grid), choices={})
    return make_cells(config, sweep)


def fake_job(cell: Cell, folder: Path) -> Job:
    fakes = {f"fake.{key}": value for key, value in cell.config["fake"].items()}
    job = job_of(cell, config_file=CONFIG_FILE, given=fakes, folder=folder)
    return replace(job, module="tests.paxkv.sweeps.fake_cell")


def sweep_once(
    folder: Path,
    cells: list[Cell],
    *,
    execute: Executor | None = None,
    retry_failed: bool = True,
    on_outcome: Callable[..., object] = lambda outcome: None,
) -> Table:
    with claimed(folder, CONFIG_FILE) as table:
        todo = cells_to_run(cells, table, retry_failed=retry_failed)
        jobs = [fake_job(cell, folder) for cell in todo]
        execute = execute or partial(run_local, num_workers=2)
        run_sweep(todo, jobs, table, execute, facts=FACTS, on_outcome=on_outcome)
        return table


def rows_in(folder: Path) -> list[dict]:
    """Of the table; a line that is no JSON raises."""
    path = folder / "rows.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def runs_in(folder: Path) -> list[tuple[str, int]]:
    """Cell and process id of every start."""
    path = folder / "runs.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


if __name__ == "__main__":
    folder, num_workers, grid, fixed = sys.argv[1:]
    sweep_once(
        Path(folder),
        fake_cells(ast.literal_eval(grid), **ast.literal_eval(fixed)),
        execute=partial(run_local, num_workers=int(num_workers)),
    )
