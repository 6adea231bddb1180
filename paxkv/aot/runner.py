"""Compiles jobs in child processes, one per target; a crash costs one job."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from pallas_kernels.aot.gpu_code import dump_flags
from pallas_kernels.aot.targets import TARGETS
from paxkv.aot.jobs import MAX_MESSAGE, Job

JOB_SECONDS = 900  # for one job, after which its compiler counts as stuck
_INHERITED_AWAY = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "LIBTPU_INIT_ARGS")


def run_jobs(
    jobs: Sequence[Job], on_row: Callable[[dict[str, Any]], None], *, processes: int
) -> None:
    """Calls `on_row` as jobs end, from several threads but one at a time.

    Args:
      processes: how many targets are compiled for at the same time.
    """
    by_target: dict[str, list[Job]] = {}
    for job in jobs:
        by_target.setdefault(job.target, []).append(job)
    lock = threading.Lock()

    def report(row: dict[str, Any]) -> None:
        with lock:
            on_row(row)

    with ThreadPoolExecutor(processes) as pool:
        for done in [
            pool.submit(_run_target, name, deque(own), report)
            for name, own in by_target.items()
        ]:
            done.result()


def _run_target(
    name: str, jobs: deque[Job], report: Callable[[dict[str, Any]], None]
) -> None:
    """Starts a child as often as it takes."""
    while jobs:
        with (
            tempfile.TemporaryDirectory() as folder,
            tempfile.TemporaryFile("w+") as errors,
        ):
            child = _start(name, folder, errors)
            try:
                while jobs:
                    row = _ask(child, jobs[0])
                    if row is None:
                        report(_crashed(jobs.popleft(), child, errors))
                        break
                    jobs.popleft()
                    report(row)
            finally:
                child.kill()
                child.wait()


def _start(name: str, folder: str, errors: Any) -> subprocess.Popen[str]:
    target = TARGETS[name]
    environment = {k: v for k, v in os.environ.items() if k not in _INHERITED_AWAY}
    environment |= target.environment
    if target.platform == "gpu":
        environment["XLA_FLAGS"] = dump_flags(folder)
    return subprocess.Popen(
        [sys.executable, "-m", "paxkv.aot.worker", name, folder],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _ask(child: subprocess.Popen[str], job: Job) -> dict[str, Any] | None:
    """The row of one job; None if the child ended over it."""
    assert child.stdin is not None and child.stdout is not None
    stuck = threading.Timer(JOB_SECONDS, child.kill)
    stuck.start()
    try:
        child.stdin.write(json.dumps(asdict(job)) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
    except BrokenPipeError:
        return None
    finally:
        stuck.cancel()
    return json.loads(line) if line.endswith("\n") else None


def _crashed(job: Job, child: subprocess.Popen[str], errors: Any) -> dict[str, Any]:
    """A row for a job that took its compiler down."""
    child.wait()
    errors.seek(0)
    said = errors.read()[-MAX_MESSAGE:].strip()
    message = f"the compiler ended with code {child.returncode}: {said}"
    return asdict(job) | {"status": "failed", "problems": [message], "message": message}
