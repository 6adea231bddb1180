"""Running what figures lack, with a bar."""

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from paxkv.reproduction.jobs import Job
from paxkv.reproduction.running import missing, run_jobs
from paxkv.results import Row


def run_missing(
    jobs: Sequence[Job],
    rows: dict[str, Row],
    path: Path,
    *,
    processes: int,
    experiment: str,
    command: str,
) -> None:
    """Runs the jobs without a result in `rows`, and adds theirs to it and to the file.

    Raises:
      ResultsNotWritten: the file could not be written; its rows are whole.
    """
    todo = missing(jobs, rows)
    with tqdm(total=len(todo), desc=experiment, unit="run") as bar:

        def told(row: Row) -> None:
            rows[row["key"]] = row
            bar.set_postfix_str(f"{row['figure']}: {row['wall_s']:.0f} s")
            bar.update()

        run_jobs(
            todo,
            path,
            processes=processes,
            experiment=experiment,
            command=command,
            on_row=told,
        )
