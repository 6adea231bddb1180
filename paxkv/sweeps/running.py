"""A sweep from its cells to its table. What runs the cells is a function passed in."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxkv.results import Row
from paxkv.sweeps.cells import CELLS, Job, Outcome
from paxkv.sweeps.grid import Cell, flags_of
from paxkv.sweeps.table import DONE, FAILED, Table

# Runs jobs and gives their outcomes as they end. Closing the iterator ends what still runs.
Executor = Callable[[Sequence[Job]], Iterator[Outcome]]
MODULES = {
    "simulated": "experiments.simulate_trace",
    "measured": "experiments.serve_trace",
}


def cells_to_run(cells: Iterable[Cell], table: Table, *, retry_failed: bool) -> list[Cell]:
    """Those without results, in the order of the grid."""
    skipped = {DONE} if retry_failed else {DONE, FAILED}
    return [cell for cell in cells if table.status(cell.cell_id) not in skipped]


def job_of(cell: Cell, *, config_file: str, given: Mapping[str, Any], folder: Path) -> Job:
    """How a cell of this kind runs.

    Args:
      config_file: as the sweep's own flag had it.
      given: what the sweep's flags set, for all cells.
      folder: of the sweep.
    """
    own_folder = (folder / CELLS / cell.cell_id).absolute()
    called = {"name": cell.name} if cell.name else {}
    overrides = {**given, **cell.overrides, **called, "output_folder": own_folder}
    return Job(
        cell_id=cell.cell_id,
        module=MODULES[cell.kind],
        arguments=(f"--config={config_file}", *flags_of(overrides), *cell.flags),
        folder=str(own_folder),
        work_folder=str(Path.cwd()),
        config=cell.config,
    )


def run_sweep(
    cells: Sequence[Cell],
    jobs: Sequence[Job],
    table: Table,
    execute: Executor,
    *,
    facts: Row,
    on_outcome: Callable[[Outcome], object],
) -> None:
    """Runs the jobs of these cells and writes what each gave as soon as it has ended.

    Args:
      facts: of the sweep, for the rows of cells that failed and have none.

    Raises:
      ResultsNotWritten: the table could not be written; what it has is whole, and the
        same call later goes on from there.
    """
    by_id = {cell.cell_id: cell for cell in cells}
    outcomes = execute(jobs)
    try:
        for outcome in outcomes:
            cell = by_id[outcome.cell_id]
            about = {
                "cell_id": cell.cell_id,
                "cell": cell.labels,
                "cell_wall_s": outcome.wall_s,
            }
            if outcome.error is None:
                table.add_results(outcome.rows, about)
            else:
                own = {"name": cell.name, "seed": cell.seed, "config": cell.config}
                table.add_failure({**facts, **own, **about}, outcome.error)
            on_outcome(outcome)
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:  # a generator's: ends the cells that still run
            close()
