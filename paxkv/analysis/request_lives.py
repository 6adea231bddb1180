"""What happened to each request of a run, and how much of everything there was."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from paxkv.events import Event, EventKind

QUEUED, RUNNING, PREEMPTED = "queued", "running", "preempted"


class Phase(NamedTuple):
    name: str  # QUEUED, RUNNING or PREEMPTED
    start_s: float
    end_s: float


class Moment(NamedTuple):
    step: int
    now_s: float
    text: str


@dataclass(slots=True)
class RequestLife:
    """Of a request with all its samples."""

    phases: list[Phase] = field(default_factory=list)  # one after the other
    moments: list[Moment] = field(default_factory=list)


@dataclass(slots=True)
class EventTotals:
    """Counts over a whole run; of blocks where the name does not say otherwise."""

    num_steps: int = 0
    num_requests: int = 0
    num_preemptions: int = 0
    num_hits: int = 0  # requests
    num_hit_tokens: int = 0
    evicted: int = 0
    copied: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    spilled: int = 0
    loaded: int = 0


def request_lives(events: Iterable[Event]) -> dict[int, RequestLife]:
    """By request id, in order of appearance.

    A phase that the log does not see end ends with the log's last event. Where samples
    finish one by one, the request runs until the last of them. A request whose id was
    given again after its end has the phases and moments of both.
    """
    lives: dict[int, RequestLife] = {}
    current: dict[int, tuple[str, float]] = {}  # of the unfinished: phase, start
    last_s = -math.inf
    for event in events:
        last_s = max(last_s, event.now_s)
        if event.kind not in _TEXTS or event.request_id is None:
            continue
        request_id = event.request_id
        life = lives.setdefault(request_id, RequestLife())
        life.moments.append(Moment(event.step, event.now_s, _text(event)))
        if event.kind not in _NEXT_PHASE:
            continue
        if request_id in current:
            _close(life, current.pop(request_id), event.now_s)
        elif event.kind is EventKind.FINISH and life.phases:
            _close(life, (life.phases[-1].name, life.phases.pop().start_s), event.now_s)
        next_phase = _NEXT_PHASE[event.kind]
        if next_phase is not None:
            current[request_id] = (next_phase, event.now_s)
    for request_id, phase in current.items():
        _close(lives[request_id], phase, last_s)
    return lives


def event_totals(events: Iterable[Event]) -> EventTotals:
    totals = EventTotals()
    for event in events:
        match event.kind:
            case EventKind.STEP:
                totals.num_steps += 1
            case EventKind.ADD:
                totals.num_requests += 1
            case EventKind.PREEMPT:
                totals.num_preemptions += 1
            case EventKind.HIT:
                totals.num_hits += event.num_tokens > 0
                totals.num_hit_tokens += event.num_tokens
            case EventKind.EVICT:
                totals.evicted += len(event.blocks)
            case EventKind.COPY:
                totals.copied += 1
            case EventKind.SWAP_OUT:
                totals.swapped_out += len(event.blocks)
            case EventKind.SWAP_IN:
                totals.swapped_in += len(event.blocks)
            case EventKind.SPILL:
                totals.spilled += len(event.slots)
            case EventKind.LOAD:
                totals.loaded += len(event.blocks)
            case _:  # no total
                pass
    return totals


def totals_table(totals: EventTotals) -> str:
    """A line for each count; those of blocks start with "blocks"."""
    lines = [
        ("steps", totals.num_steps),
        ("requests", totals.num_requests),
        ("preemptions", totals.num_preemptions),
        ("requests with a hit", totals.num_hits),
        ("prompt tokens found in the cache", totals.num_hit_tokens),
        ("blocks evicted", totals.evicted),
        ("blocks copied on write", totals.copied),
        ("blocks swapped out", totals.swapped_out),
        ("blocks swapped in", totals.swapped_in),
        ("blocks spilled to disk", totals.spilled),
        ("blocks loaded from disk", totals.loaded),
    ]
    return "\n".join(f"{name:<33}{count:>12,}" for name, count in lines)


# None: no phase follows
_NEXT_PHASE = {
    EventKind.ADD: QUEUED,
    EventKind.ADMIT: RUNNING,
    EventKind.PREEMPT: PREEMPTED,
    EventKind.FINISH: None,
}
_TEXTS = {
    EventKind.ADD: "added",
    EventKind.ADMIT: "admitted, {num_tokens} of its tokens found in the cache",
    EventKind.HIT: "hit: {num_tokens} tokens of its prompt were in the cache",
    EventKind.PREEMPT: "preempted, {num_tokens} tokens lost",
    EventKind.FORK: "forked into {detail}",
    EventKind.FINISH: "finished: {detail}",
}


def _text(event: Event) -> str:
    if event.kind is EventKind.PREEMPT and event.num_tokens == 0:
        return "preempted, swapped out"
    text = _TEXTS[event.kind].format(num_tokens=event.num_tokens, detail=event.detail)
    return f"sample {event.sample_index}: {text}" if event.sample_index else text


def _close(life: RequestLife, phase: tuple[str, float], end_s: float) -> None:
    """An end before the start (an arrival dated later than its admission) counts as it."""
    name, start_s = phase
    life.phases.append(Phase(name, start_s, max(start_s, end_s)))
