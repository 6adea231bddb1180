"""Runs jobs in processes of their own, and keeps what they gave in one file.

The file, rows.jsonl, has a row per run, written as soon as it has ended, so that the same
call later goes on from there. Simulations share the machine; what is measured runs alone.
"""

import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paxkv.reproduction.figure import NotAvailable
from paxkv.reproduction.jobs import Job, distinct
from paxkv.reproduction.runners import load
from paxkv.results import Row, RunInfo, append_row, run_facts

HOST = "host"  # device of what is computed or simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a job came to; one of the first three is there."""

    metrics: Mapping[str, Any] | None = None
    unavailable: str | None = None  # what it needs that is not here
    error: str | None = None
    traceback: str | None = None  # of the error
    wall_s: float = 0.0


def run_jobs(
    jobs: Sequence[Job],
    path: Path,
    *,
    processes: int,
    experiment: str,
    command: str,
    on_row: Callable[[Row], object] = lambda row: None,
) -> None:
    """Runs the jobs and appends their rows; those of one key must be one job.

    Args:
      path: of the rows; its folder exists.
      processes: simulations at once.
      experiment: of the rows, with its `command`.

    Raises:
      ResultsNotWritten: the file could not be written; its rows are whole.
    """
    alone = [job for job in jobs if load(job.runner).kind == "measured"]
    together = [job for job in jobs if load(job.runner).kind != "measured"]
    facts: dict[str, Row] = {}
    for some, count in ((together, processes), (alone, 1)):
        for job, ended in _ended(some, count):
            kind = load(job.runner).kind
            if kind not in facts:
                facts[kind] = run_facts(_info(kind, experiment, command))
            row = row_of(job, ended, facts[kind])
            append_row(path, row)
            on_row(row)


def row_of(job: Job, ended: Ended, facts: Row) -> dict[str, Any]:
    """A run's row; `device` is the metrics' own, where they are measured."""
    metrics = dict(ended.metrics or {})
    return {
        **facts,
        "seed": job.seed,
        "device": metrics.pop("device", HOST),
        "key": job.key,
        "figure": job.figure,
        "runner": job.runner,
        "labels": job.labels,
        "profile": job.profile,
        "planted": job.planted,
        "config": job.config,
        "metrics": None if ended.metrics is None else metrics,
        "unavailable": ended.unavailable,
        "error": ended.error,
        "traceback": ended.traceback,
        "wall_s": ended.wall_s,
    }


def read_rows(path: Path) -> dict[str, Row]:
    """The last row of each key. A line that was cut off by a crash is no row."""
    if not path.exists():
        return {}
    rows: dict[str, Row] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            rows[row["key"]] = row
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} is no row of a figure; take it out, or use "
                "another --out."
            ) from error
    return rows


def errors(jobs: Iterable[Job], rows: Mapping[str, Row]) -> list[str]:
    """A line for each run that ended with an error, whether or not a check reads it."""
    return [
        f"figure {job.figure}, {job.labels}, seed {job.seed}"
        f"{f', {job.planted}' if job.planted else ''}: {rows[job.key]['error']}"
        for job in distinct(jobs)
        if job.key in rows and rows[job.key]["error"] is not None
    ]


def missing(jobs: Iterable[Job], rows: Mapping[str, Row]) -> list[Job]:
    """The runs without a result, each once."""
    return [job for job in distinct(jobs) if rows.get(job.key, {}).get("metrics") is None]


def _info(kind: str, experiment: str, command: str) -> RunInfo:
    is_measured = kind == "measured"
    return RunInfo(
        experiment=experiment,
        kind=kind,
        command=command,
        seed=0,  # each row has its own
        device=HOST,
        implementation="auto" if is_measured else "none",
        matmul_precision="highest" if is_measured else "none",
        xla_flags=os.environ.get("XLA_FLAGS", "") if is_measured else "",
    )


def _ended(jobs: Iterable[Job], processes: int) -> Iterator[tuple[Job, Ended]]:
    """Each job as it ends. If the caller stops asking, those that wait are dropped."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _end_with_parent)
    futures: dict[Future[Ended], Job] = {pool.submit(_run, job): job for job in jobs}
    waiting = set(futures)
    try:
        for future in as_completed(futures):
            waiting.discard(future)
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            else:  # of the pool: a worker was killed, and nothing that waits will run
                yield futures[future], Ended(error=f"its process ended: {error}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children() if waiting else ():
            worker.terminate()  # the caller stopped asking, so what runs is for nobody


def _end_with_parent() -> None:
    """Of a worker: it must not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(job: Job) -> Ended:
    """In a worker. An error ends this job only."""
    started_s = time.perf_counter()
    try:
        ended = Ended(metrics=load(job.runner).run(job.config, job.profile))
    except NotAvailable as why:
        ended = Ended(unavailable=str(why))
    except Exception as error:  # whatever it is, the other runs go on
        said = f"{type(error).__name__}: {error}"
        ended = Ended(error=said, traceback=traceback.format_exc())
    return replace(ended, wall_s=time.perf_counter() - started_s)
