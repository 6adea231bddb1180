"""Cells as processes of this machine, some at once."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

from paxkv.sweeps.cells import Job, Outcome, Running, end, outcome_of, start

POLL_S = 0.02  # a cell takes seconds


def run_local(jobs: Sequence[Job], num_workers: int) -> Iterator[Outcome]:
    """Outcomes as the cells end. However this ends, no cell is left running.

    Raises:
      ResultsNotWritten: there is no room for a cell's files.
    """
    waiting = deque(jobs)
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                running.append(start(waiting.popleft()))
            ended = [one for one in running if one.process.poll() is not None]
            for one in ended:
                running.remove(one)
                end(one)
                yield outcome_of(one)
            if not ended:
                time.sleep(POLL_S)
    finally:
        for one in running:
            end(one)
