"""One cell as a process of its own: what goes wrong there harms no other cell."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.results import Row, explained, prepare_folder
from paxkv.sweeps.grid import NOT_IN_ID, Tree, flat

CELLS = "cells"  # in a sweep's folder: a folder of each
GUARD = "paxkv.sweeps.guarded"
STDERR = "stderr.txt"
STDOUT = "stdout.txt"
ROWS = "rows.jsonl"
FAILED = "FAILED"  # how an experiment begins a line that says what failed
TAIL_CHARACTERS = 2000  # of what a failed cell said, in its row


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell and how to run it; plain values, which another machine may get."""

    cell_id: str
    module: str  # python -m of it
    arguments: tuple[str, ...]
    folder: str  # for its files; emptied first
    work_folder: str  # from which the module is found
    config: Tree  # that its rows must have


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a cell wrote, or why it did not."""

    cell_id: str
    wall_s: float
    rows: tuple[Row, ...] = ()
    error: str | None = None  # None: it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A cell's process, which leads a group of its own."""

    job: Job
    process: subprocess.Popen[bytes]
    started_s: float


def run_cell(job: Job) -> Outcome:
    """Runs the cell to its end; whatever ends this call ends the cell's processes."""
    running = start(job)
    try:
        running.process.wait()
        return outcome_of(running)
    finally:
        end(running)


def start(job: Job) -> Running:
    """Starts the cell in an empty folder.

    Raises:
      ResultsNotWritten: the folder cannot be made.
    """
    folder = Path(job.folder)
    with explained(folder):
        if folder.exists():
            shutil.rmtree(folder)
    prepare_folder(folder)
    with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as error:
        process = subprocess.Popen(
            [sys.executable, "-m", GUARD, job.module, *job.arguments],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=error,
            cwd=job.work_folder,
            start_new_session=True,
        )
    return Running(job=job, process=process, started_s=time.monotonic())


def end(running: Running) -> None:
    """Ends the cell's processes, if they have not ended, and waits for it."""
    process = running.process
    if process.poll() is None:  # so its id is not yet another's
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def outcome_of(running: Running) -> Outcome:
    """Of a process that has ended."""
    job, code = running.job, running.process.returncode
    rows, error = (), None
    try:
        rows = _rows_of(job)
        if code != 0 and not _is_whole_but_for_rejections(code, rows):
            rows, error = (), _why_it_failed(job, code)
        elif not rows:
            error = f"{job.module} ended well and wrote no row to {ROWS} of its folder."
    except (OSError, ValueError, KeyError) as problem:
        error = str(problem) if code == 0 else _why_it_failed(job, code)
    wall_s = time.monotonic() - running.started_s
    return Outcome(cell_id=job.cell_id, wall_s=wall_s, rows=rows, error=error)


def _is_whole_but_for_rejections(code: int, rows: tuple[Row, ...]) -> bool:
    """A trial that rejects requests ends with 1, and its rows say so: in a sweep, whose
    cells are meant to differ, that is a result."""
    if code != 1 or not rows:
        return False
    simulated = set(rows[0]["config"]["profiles"])
    wanted = {"measured"} if rows[0]["kind"] == "measured" else simulated
    is_whole = {row["profile"] for row in rows} == wanted
    return is_whole and any(row["metrics"]["num_rejected"] for row in rows)


def _why_it_failed(job: Job, code: int) -> str:
    how = f"exit code {code}"
    if code < 0:
        how = f"ended by signal {-code} ({signal.strsignal(-code)})"
    folder = Path(job.folder)
    said = [line for line in _lines(folder / STDOUT) if line.startswith(FAILED)]
    said += _lines(folder / STDERR)
    return f"{how}: " + ("\n".join(said)[-TAIL_CHARACTERS:] or "it said nothing")


def _lines(path: Path) -> list[str]:
    """Of a text that is shown as a terminal would: of a progress bar, the last state."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    return [line for line in lines if line.strip()]


def _rows_of(job: Job) -> tuple[Row, ...]:
    """What the cell wrote.

    Raises:
      ValueError: rows of another config, or no rows but something else.
    """
    path = Path(job.folder) / ROWS
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = tuple(json.loads(line) for line in lines)
    for row in rows:
        _require_same_config(job.config, row["config"])
    return rows


def _require_same_config(wanted: Tree, ran: Tree) -> None:
    """A config file that is edited while its sweep runs would give cells of two kinds."""
    mine, other = _deciding(wanted), _deciding(ran)
    for key in mine:
        if key not in other or mine[key] != other[key]:
            raise ValueError(
                f"the cell ran with {key}={other.get(key)!r}, the sweep has {mine[key]!r}: "
                "the config file has changed since the sweep started. Start it again."
            )


def _deciding(config: Tree) -> Mapping[str, Any]:
    """As JSON has them, where a tuple is a list."""
    leaves = flat({key: config[key] for key in config if key not in NOT_IN_ID})
    return json.loads(json.dumps(leaves))
