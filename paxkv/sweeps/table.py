"""The results of a sweep: a folder that one sweep at a time writes, with one table.

    sweep.json    which config the folder is for
    sweep.lock    held while a sweep runs, with its process id
    rows.jsonl    the table: rows of all cells, each whole or absent
    cells/ID/     what the cell itself wrote

A row of a done cell is what the trial wrote, with `cell_id`, `cell` (its labels),
`cell_row` (which of how many) and `status`. A cell is done when all of these are there. A
failure is a row too; that of a cell that is done later stays before its results.
"""

import fcntl
import json
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paxkv.results import (
    SCHEMA_VERSION,
    Row,
    append_row,
    cut_torn_line,
    explained,
    prepare_folder,
)

TABLE = "rows.jsonl"
MARKER = "sweep.json"
LOCK = "sweep.lock"
DONE, FAILED = "done", "failed"

Place = tuple[int, int]  # which row of a cell, of how many


@dataclass(slots=True, kw_only=True)
class Table:
    """The table of a claimed folder; every row that is added is on the disk."""

    path: Path
    places: dict[str, set[Place]] = field(default_factory=dict)  # of done rows, by cell
    failures: dict[str, str] = field(default_factory=dict)  # the last error, by cell

    def status(self, cell_id: str) -> str | None:
        """None: it has not run, or not to its end."""
        places = self.places.get(cell_id, set())
        if places and len(places) == max(count for _, count in places):
            return DONE
        return FAILED if cell_id in self.failures else None

    def add_results(self, rows: Iterable[Row], about: Mapping[str, Any]) -> None:
        """Adds a cell's rows; those that are there already are left as they are.

        Raises:
          ResultsNotWritten: the table could not be written; it has whole rows only.
        """
        rows = tuple(rows)
        for index, row in enumerate(rows):
            added = {**row, **about, "cell_row": [index, len(rows)], "status": DONE}
            if (index, len(rows)) not in self.places.get(about["cell_id"], ()):
                append_row(self.path, added)
                self.know(added)

    def add_failure(self, row: Row, error: str) -> None:
        """Adds a row without results.

        Raises:
          ResultsNotWritten: the table could not be written; it has whole rows only.
        """
        added = {**row, "status": FAILED, "error": error}
        append_row(self.path, added)
        self.know(added)

    def know(self, row: Row) -> None:
        """Takes a row of the file into account."""
        if row["status"] == FAILED:
            self.failures[row["cell_id"]] = row["error"]
            return
        index, count = row["cell_row"]
        self.places.setdefault(row["cell_id"], set()).add((index, count))


@contextmanager
def claimed(folder: Path, config_file: str) -> Generator[Table, None, None]:
    """Holds the folder for one sweep and gives its table, repaired if a crash cut it.

    Raises:
      ValueError: another sweep has the folder, or it is not for this config.
      ResultsNotWritten: nothing can be written there.
    """
    prepare_folder(folder)
    with _locked(folder):
        require_ours(folder, config_file)
        _mark(folder, config_file)
        cut_torn_line(folder / TABLE)
        yield read_table(folder)


def read_table(folder: Path) -> Table:
    """The table as it is; empty where there is none yet.

    Raises:
      ValueError: a line is no row of a sweep.
    """
    table = Table(path=folder / TABLE)
    if not table.path.exists():
        return table
    lines = table.path.read_bytes().split(b"\n")[:-1]  # what has no end is no row
    for number, line in enumerate(lines, start=1):
        try:
            table.know(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {table.path} is no row of a sweep; set another "
                "config.output_folder, or take the line out."
            ) from error
    return table


def require_ours(folder: Path, config_file: str) -> None:
    """Raises a ValueError unless the folder is new or this config's."""
    marker = folder / MARKER
    if not marker.exists():
        if (folder / TABLE).exists():
            raise ValueError(
                f"{folder / TABLE} is there without {MARKER}: no sweep wrote it. Set "
                "another config.output_folder."
            )
        return
    try:
        told = json.loads(marker.read_text("utf-8"))
        schema, config = told["schema"], told["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{marker} says nothing that can be read; set another config.output_folder."
        ) from error
    if schema != SCHEMA_VERSION:
        raise ValueError(
            f"{folder} has rows of schema {schema}, this program writes schema "
            f"{SCHEMA_VERSION}; set another config.output_folder."
        )
    if config != config_file:
        raise ValueError(
            f"{folder} has the results of {config}, not of {config_file}; set another "
            "config.output_folder."
        )


def _mark(folder: Path, config_file: str) -> None:
    marker = folder / MARKER
    if marker.exists():
        return
    new = folder / f"{MARKER}.new"
    with explained(marker), open(new, "w", encoding="utf-8") as file:
        json.dump({"schema": SCHEMA_VERSION, "config": config_file}, file)
        file.flush()
        os.fsync(file.fileno())
    with explained(marker):
        os.replace(new, marker)


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """The system lets the lock go when the process ends, so none is ever left behind."""
    path = folder / LOCK
    with explained(path):
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115, closed below
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"{folder} is in use by another sweep, process {file.read().strip()}; wait "
                "for it, or set another config.output_folder."
            ) from None
        with explained(path):
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield
