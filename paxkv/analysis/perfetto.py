"""Events as a trace in Chrome's JSON format, for ui.perfetto.dev or chrome://tracing.

Tracks: the executor's steps; copies and transfers, at the step that planned them; each
request's phases; and counters of block states, one per cache group.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.event_replay import BlockState, PoolHistory
from paxkv.analysis.request_lives import request_lives
from paxkv.events import Event, EventKind
from paxkv.results import explained

ENGINE, REQUESTS = 1, 2  # process ids; the viewers treat 0 as the idle one
STEPS, TRANSFERS = 1, 2  # thread ids of ENGINE
# what moves, and the field that lists it; of a copy (src, dst) is one
TRANSFER_KINDS = {
    EventKind.COPY: None,
    EventKind.SWAP_OUT: "blocks",
    EventKind.SWAP_IN: "blocks",
    EventKind.SPILL: "slots",
    EventKind.LOAD: "blocks",
}

Record = dict[str, Any]


def write_trace(path: Path, events: Sequence[Event], history: PoolHistory) -> None:
    """Writes the trace of a run.

    Raises:
      ResultsNotWritten: the file could not be written.
    """
    with explained(path):
        path.write_text(json.dumps(trace(events, history)), encoding="utf-8")


def trace(events: Sequence[Event], history: PoolHistory) -> Record:
    """The trace as JSON will have it; times in µs since the earliest moment of the run.

    Args:
      history: what `replay` made of the same events.
    """
    origin_s = min((event.now_s - event.duration_s for event in events), default=0.0)
    records = [
        *_names(),
        *_steps(events),
        *_transfers(events),
        *_requests(events),
        *_counters(history),
    ]
    for record in records:
        if record["ph"] == "M":
            continue
        # both ends are rounded, so that neighbours still meet
        start_us = round((record.pop("start_s") - origin_s) * 1e6, 3)
        record["ts"] = start_us
        if record["ph"] == "X":
            end_us = round((record.pop("end_s") - origin_s) * 1e6, 3)
            record["dur"] = round(end_us - start_us, 3)
    return {"traceEvents": records, "displayTimeUnit": "ms"}


def _names() -> Iterator[Record]:
    yield _name("process_name", ENGINE, 0, "engine")
    yield _name("thread_name", ENGINE, STEPS, "steps")
    yield _name("thread_name", ENGINE, TRANSFERS, "copies and transfers")
    yield _name("process_name", REQUESTS, 0, "requests")


def _name(kind: str, process: int, thread: int, name: str) -> Record:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(process: int, thread: int, name: str, start_s: float, end_s: float) -> Record:
    record = {"ph": "X", "name": name, "pid": process, "tid": thread}
    return {**record, "start_s": start_s, "end_s": end_s, "args": {}}


def _steps(events: Iterable[Event]) -> Iterator[Record]:
    """As long as the executor took, up to the commit."""
    busy_until_s = float("-inf")  # slices of one track must not overlap
    for event in events:
        if event.kind is EventKind.STEP:
            start_s = max(event.now_s - event.duration_s, busy_until_s)
            busy_until_s = max(event.now_s, start_s)
            name = f"step {event.step}"
            record = _slice(ENGINE, STEPS, name, start_s, busy_until_s)
            yield {**record, "args": {"num_tokens": event.num_tokens}}


def _transfers(events: Iterable[Event]) -> Iterator[Record]:
    """One mark a step, with the number of blocks of each kind: how long they took is
    part of the step."""
    marks: dict[int, tuple[float, Counter[str]]] = {}
    for event in events:
        if event.kind in TRANSFER_KINDS:
            moved = TRANSFER_KINDS[event.kind]
            count = 1 if moved is None else len(getattr(event, moved))
            _, counts = marks.setdefault(event.step, (event.now_s, Counter()))
            counts[event.kind.value] += count
    for now_s, counts in marks.values():
        yield {
            "ph": "i",
            "s": "t",
            "name": ", ".join(f"{kind} {count}" for kind, count in counts.items()),
            "pid": ENGINE,
            "tid": TRANSFERS,
            "start_s": now_s,
            "args": dict(counts),
        }


def _requests(events: Iterable[Event]) -> Iterator[Record]:
    lives = request_lives(events)
    for thread, (request_id, life) in enumerate(lives.items(), start=1):
        yield _name("thread_name", REQUESTS, thread, f"request {request_id}")
        for phase in life.phases:
            yield _slice(REQUESTS, thread, phase.name, phase.start_s, phase.end_s)


def _counters(history: PoolHistory) -> Iterator[Record]:
    """At the end of every step; a viewer stacks them up to the size of the pool."""
    for step in history.steps:
        for group, counts in enumerate(step.counts):
            yield {
                "ph": "C",
                "name": f"blocks of group {group}",
                "pid": ENGINE,
                "start_s": step.now_s,
                "args": _used_cached_free(counts),
            }


def _used_cached_free(counts: Sequence[int]) -> Mapping[str, int]:
    return {
        "used": counts[BlockState.OWNED] + counts[BlockState.SHARED],
        "cached": counts[BlockState.CACHED],
        "free": counts[BlockState.FREE],
    }
