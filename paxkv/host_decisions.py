"""What a scheduler decides on a stream of requests, step by step; two can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paxkv.cache_keys import token_bytes
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.events import Event, EventKind
from paxkv.host_peer import Peer
from paxkv.host_stream import VOCAB_SIZE
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler_building import build_scheduler
from paxkv.types import Request, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests `arriving[s]` come before step s; request i has the tokens `prompts[i]`, and
    then generates `outputs[i]`."""

    prompts: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    arriving: tuple[tuple[int, ...], ...]
    max_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Of one step."""

    num_tokens: Mapping[int, int]  # that each request computes
    preempted: tuple[int, ...]  # ascending
    finished: tuple[int, ...]  # ascending
    num_free: int  # blocks that can be had when the step is over, cached ones as well


def decide(
    stream: Arrivals, cache: CacheConfig, config: SchedulerConfig, num_blocks: int
) -> list[Decision]:
    """The decisions of our scheduler, until the last request has ended."""
    preempted: list[int] = []

    def listen(event: Event) -> None:
        if event.kind is EventKind.PREEMPT and event.request_id is not None:
            preempted.append(event.request_id)

    scheduler = build_scheduler(
        cache,
        config,
        num_blocks=(num_blocks,),
        max_context=stream.max_context,
        vocab_size=VOCAB_SIZE,
        listener=listen,
    )
    decisions: list[Decision] = []
    while len(decisions) < len(stream.arriving) or scheduler.has_unfinished:
        step = len(decisions)
        for index in stream.arriving[step] if step < len(stream.arriving) else ():
            scheduler.add(_request(stream, index))
        preempted.clear()
        plan = scheduler.plan(float(step))
        tokens = [stream.outputs[r.request_id][len(r.output_ids)] for r in plan.requests]
        result = StepResult(tokens=np.asarray(tokens, np.int32), duration_s=0.0)
        outcome = scheduler.commit(plan, result, float(step))
        ids = [request.request_id for request in plan.requests]
        ended = [update.request_id for update in outcome.updates if update.finish]
        decisions.append(
            Decision(
                num_tokens=dict(zip(ids, plan.lengths.tolist(), strict=True)),
                preempted=tuple(sorted(preempted)),
                finished=tuple(sorted(ended)),
                num_free=scheduler.allocator.usage(0).num_available,
            )
        )
    return decisions


def decide_by_peer(
    peer: Peer, stream: Arrivals, num_blocks: int, **settings: Any
) -> list[Decision]:
    """The decisions of vLLM's scheduler; `settings`: block_size, max_num_seqs,
    max_num_batched_tokens, prefix_caching, watermark."""
    asked = {"op": "decide", "stream": asdict(stream), "num_blocks": num_blocks}
    answer = peer.ask(asked | settings)
    return [
        Decision(
            num_tokens={int(index): count for index, count in one["num_tokens"].items()},
            preempted=tuple(one["preempted"]),
            finished=tuple(one["finished"]),
            num_free=one["num_free"],
        )
        for one in answer["decisions"]
    ]


def first_difference(ours: Sequence[Decision], theirs: Sequence[Decision]) -> str | None:
    """In which step, and how; None: they are equal."""
    for step, pair in enumerate(zip(ours, theirs, strict=False)):
        if pair[0] != pair[1]:
            return f"step {step}: ours {pair[0]}, theirs {pair[1]}"
    if len(ours) != len(theirs):
        return f"{len(ours)} steps of ours, {len(theirs)} of theirs"
    return None


def _request(stream: Arrivals, index: int) -> Request:
    sampling = SamplingParams(max_tokens=len(stream.outputs[index]), ignore_eos=True)
    return Request(
        request_id=index,
        prompt_ids=stream.prompts[index],
        sampling=sampling,
        arrival_s=0.0,
        prompt_bytes=token_bytes(stream.prompts[index]),
    )
