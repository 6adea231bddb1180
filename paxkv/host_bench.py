"""Replays of a recorded stream by our host side; `host_peer` has those of a peer's.

All that are compared take turns, a batch of steps each, and the medians over the steps of
one such run are compared: on a shared machine bare times move by 2×.
"""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paxkv.cache_keys import token_bytes
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.host_stream import VOCAB_SIZE, Stream
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler import Scheduler
from paxkv.scheduler_building import build_scheduler
from paxkv.types import Plan, Request, StepResult

Seconds = dict[str, list[float]]  # of each kind of work, one number a step
GC_MODES = ("frozen", "off")
# "cpu" leaves out what other processes take of the core, but is a system call
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.thread_time,
}


@runtime_checkable
class Replay(Protocol):
    """A host side on a stream."""

    def advance(self, num_steps: int) -> tuple[Seconds, list[list[int]]]:
        """What the next steps took, and the requests that ended in each, ascending."""
        ...


def settle(gc_mode: str) -> None:
    """What is alive stays out of collections from now on, as vLLM's engine has it too.

    "frozen" leaves the collector on for what comes; "off" turns it off.
    """
    gc.collect()
    gc.freeze()
    if gc_mode == "off":
        gc.disable()


def make_scheduler(stream: Stream, *, num_blocks: int, block_size: int) -> Scheduler:
    """With a pool of `num_blocks`, a prefix cache, and limits that the stream keeps to."""
    return build_scheduler(
        CacheConfig(block_size=block_size, prefix_caching=True),
        SchedulerConfig(
            max_num_seqs=stream.num_rows,
            max_num_batched_tokens=stream.max_num_batched_tokens,
            watermark=0.0,
        ),
        num_blocks=(num_blocks,),
        max_context=stream.max_context,
        vocab_size=VOCAB_SIZE,
    )


def _request(stream: Stream, request_id: int) -> Request:
    num_outputs = len(stream.outputs[request_id])
    return Request(
        request_id=request_id,
        prompt_ids=stream.prompts[request_id],
        sampling=SamplingParams(max_tokens=num_outputs, ignore_eos=True),
        arrival_s=0.0,
        prompt_bytes=token_bytes(stream.prompts[request_id]),
    )


class StepReplay:
    """`plan`, `pack` and `commit`; adding requests and "sampling" are not timed."""

    def __init__(
        self,
        stream: Stream,
        pack: Callable[[Plan], object],
        *,
        num_blocks: int,
        block_size: int,
        clock: str = "wall",
    ):
        """`clock`: one of `CLOCKS`."""
        self.scheduler = make_scheduler(
            stream, num_blocks=num_blocks, block_size=block_size
        )
        self._clock = CLOCKS[clock]
        self._stream = stream
        self._pack = pack
        self._steps = iter(stream.steps)

    def advance(self, num_steps: int) -> tuple[Seconds, list[list[int]]]:
        seconds: Seconds = defaultdict(list)
        return seconds, [self._step(seconds) for _ in range(num_steps)]

    def _step(self, seconds: Seconds) -> list[int]:
        scheduler = self.scheduler
        for request_id in next(self._steps).admitted:
            refused = scheduler.add(_request(self._stream, request_id))
            assert not refused, refused
        start = self._clock()
        plan = scheduler.plan(0.0)
        planned = self._clock()
        self._pack(plan)
        packed = self._clock()
        outputs = self._stream.outputs
        tokens = [outputs[r.request_id][len(r.output_ids)] for r in plan.requests]
        result = StepResult(tokens=np.asarray(tokens, np.int32), duration_s=0.0)
        before = self._clock()
        outcome = scheduler.commit(plan, result, 0.0)
        end = self._clock()
        seconds["plan"].append(planned - start)
        seconds["pack"].append(packed - planned)
        seconds["commit"].append(end - before)
        seconds["whole"].append(packed - start + end - before)
        return sorted(u.request_id for u in outcome.updates if u.finish is not None)


class ManagerReplay:
    """Allocator and tables alone: look up, admit, decode, free.

    Full blocks enter the prefix cache in "insert", after "admit", and "register", after
    "decode". Making requests is timed as "make", a look-up as part of "admit" and once more
    alone. Tokens are written to the tables beside the clock.
    """

    def __init__(
        self, stream: Stream, *, num_blocks: int, block_size: int, clock: str = "wall"
    ):
        """`clock`: one of `CLOCKS`."""
        self._clock = CLOCKS[clock]
        scheduler = make_scheduler(stream, num_blocks=num_blocks, block_size=block_size)
        self._tables, self._running = scheduler.tables, scheduler.running
        self._allocator: Any = scheduler.allocator  # a paged one, with shared prefixes
        self._stream = stream
        self._steps = iter(stream.steps)

    def advance(self, num_steps: int) -> tuple[Seconds, list[list[int]]]:
        seconds: Seconds = defaultdict(list)
        return seconds, [self._step(seconds) for _ in range(num_steps)]

    def _step(self, seconds: Seconds) -> list[int]:
        step = next(self._steps)
        start = self._clock()
        self._decode()
        decoded = self._clock()
        self._allocator.committed(self._running.rows)
        registered = self._clock()
        new = [_request(self._stream, request_id) for request_id in step.admitted]
        made = self._clock()
        for request in new:
            self._allocator.prefixes.find(request)
        looked_up = self._clock()
        rows = np.asarray([self._acquire(request) for request in new], np.int32)
        acquired = self._clock()
        self._admit(new, rows)
        admitted = self._clock()
        self._allocator.committed(rows)
        inserted = self._clock()
        self._running.requests += new
        self._running.rows = np.append(self._running.rows, rows)
        self._append_outputs()
        ended = [r.request_id in step.finished for r in self._running.requests]
        ended_rows = self._running.rows[ended].tolist()
        before = self._clock()
        for row in ended_rows:
            self._allocator.release(row)
        end = self._clock()
        finished = self._remove(np.asarray(ended, bool))
        seconds["decode"].append(decoded - start)
        seconds["register"].append(registered - decoded)
        seconds["make"].append(made - registered)
        seconds["look_up"].append(looked_up - made)
        seconds["admit"].append(admitted - acquired)
        # without the look-up that admitting begins with
        seconds["allocate"].append(admitted - acquired - (looked_up - made))
        seconds["insert"].append(inserted - admitted)
        seconds["free"].append(end - before)
        return finished

    def _decode(self) -> None:
        """Room for one token of each running request, and that one counted as computed."""
        rows, tables = self._running.rows, self._tables
        lengths = np.zeros(tables.num_rows, np.int32)
        lengths[rows] = 1
        assert self._running.extend_tables(lengths) is None, "the pool is full"
        tables.num_computed[rows] += 1

    def _acquire(self, request: Request) -> int:
        row = self._tables.acquire()
        self._tables.request_ids[row] = request.request_id
        self._tables.write_known(row, request.prompt_ids, ())
        return row

    def _admit(self, requests: list[Request], rows: np.ndarray) -> None:
        """Room for the prompts, which then count as computed."""
        num_computed = self._tables.num_computed
        for request, row in zip(requests, rows.tolist(), strict=True):
            num_cached = self._allocator.admit(row, request, 0)
            assert num_cached is not None, "the pool is full"
            num_computed[row] = num_cached
            self._allocator.extend(row, request.num_tokens)
            num_computed[row] = request.num_tokens

    def _append_outputs(self) -> None:
        rows, tables, tokens = self._running.rows, self._tables, []
        for request in self._running.requests:
            outputs = self._stream.outputs[request.request_id]
            tokens.append(outputs[len(request.output_ids)])
            request.output_ids.append(tokens[-1])
        tables.tokens[rows, tables.num_tokens[rows]] = tokens
        tables.num_tokens[rows] += 1

    def _remove(self, ended: np.ndarray) -> list[int]:
        """Forgets requests whose blocks are free; those that had all their outputs."""
        running, finished = self._running, []
        for request in running.requests:
            if len(request.output_ids) == request.sampling.max_tokens:
                finished.append(request.request_id)
        for row in running.rows[ended].tolist():
            self._tables.release(row)
        keeps = ~ended
        running.requests = list(compress(running.requests, keeps.tolist()))
        running.rows = running.rows[keeps]
        return sorted(finished)


def in_turns(
    stream: Stream,
    replays: Mapping[str, Replay],
    batch: int,
    progress: Callable[[int], object] = lambda num_steps: None,
) -> dict[str, Seconds]:
    """Seconds of each side's steps after the warm ones; `batch` steps are one turn.

    Args:
      progress: told of steps done.

    Raises:
      ArithmeticError: a request ended on one side in another step than was recorded.
    """
    seconds: dict[str, Seconds] = {name: defaultdict(list) for name in replays}
    wanted = [list(step.finished) for step in stream.steps]
    names, first, size = list(replays), 0, stream.num_warm
    while first < len(wanted):
        size = min(size, len(wanted) - first)
        for name in names:
            took, finished = replays[name].advance(size)
            if finished != wanted[first : first + size]:
                raise ArithmeticError(
                    f"{name}: other requests ended in steps [{first}, {first + size}) than "
                    "were recorded, so it did other work; is its pool too small?"
                )
            if first >= stream.num_warm:
                for kind, values in took.items():
                    seconds[name][kind] += values
            progress(size)
        names.append(names.pop(0))  # no side is always the first
        first, size = first + size, batch
    return seconds
