"""Requests of several sequences: samples and beams, forked in the decode path.

A fork shares all blocks of the sequence that it comes from; where both go on in the same
block, the first to write copies it (`PagedAllocator.extend`).
"""

from collections.abc import Sequence

from paxkv.beam import BeamParams, BeamSearch
from paxkv.requests import metrics_of
from paxkv.running import Running
from paxkv.types import Finish, FinishReason, Group, Request, RequestUpdate


def make_group(request: Request, stop_token_ids: frozenset[int], max_context: int) -> Group:
    """The group whose only sequence so far is `request`."""
    sampling = request.sampling
    group = Group(
        request_id=request.request_id,
        num_sequences=sampling.num_sequences,
        sequences=[request],
    )
    if sampling.use_beam_search:
        room = max_context - len(request.prompt_ids)
        params = BeamParams(
            width=sampling.num_sequences,
            num_return=sampling.n,
            max_tokens=max(min(sampling.max_tokens, room), 1),
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            stop_token_ids=stop_token_ids,
        )
        group.beams = BeamSearch(params)
    request.group = group
    return group


def child_of(parent: Request, sample_index: int) -> Request:
    """Another sequence of the parent's group, with its outputs so far."""
    child = Request(
        request_id=parent.request_id,
        prompt_ids=parent.prompt_ids,
        sampling=parent.sampling,
        arrival_s=parent.arrival_s,
        options=parent.options,
        group=parent.group,
        sample_index=sample_index,
        rank=(*parent.rank[:2], sample_index),
        cumulative_logprob=parent.cumulative_logprob,
        num_preemptions=parent.num_preemptions,
    )
    inherit(child, parent)
    return child


def inherit(child: Request, parent: Request) -> None:
    """A sequence that goes on from where its parent is has the parent's progress."""
    child.output_ids = list(parent.output_ids)
    child.prompt_bytes = parent.prompt_bytes
    child.num_prompt_logprobs = parent.num_prompt_logprobs
    child.num_cached_tokens = parent.num_cached_tokens
    child.first_scheduled_s = parent.first_scheduled_s
    child.token_times_s = list(parent.token_times_s)


def fan_out(request: Request, running: Running) -> tuple[list[Request], list[Request]]:
    """The other samples of a request that has just sampled its first token.

    They share all K/V of the prompt, and compute only its last token again, for their own
    draw of its logits; its K/V goes to the null block. Returns those that run, and those
    for which there was no row or no room.
    """
    tables, group = running.tables, request.group
    group.is_forked = True
    started, waiting = [], []
    for sample_index in range(1, group.num_sequences):
        child = child_of(request, sample_index)
        child.output_ids, child.token_times_s = [], []
        group.sequences.append(child)
        row = running.fork(request, child)
        if row is None:
            waiting.append(child)
            continue
        started.append(child)
        num_prompt = len(child.prompt_ids)
        tables.tokens[row, num_prompt : tables.num_tokens[row]] = 0
        tables.num_tokens[row] = num_prompt
        tables.num_computed[row] = num_prompt - 1
        tables.first_write[row] = num_prompt
    return started, waiting


def advance_beams(
    group: Group, running: Running, now_s: float, *, retain: bool
) -> list[Request]:
    """Takes in the candidates of all live beams; the sequences that were forked.

    Beams without a continuation are dropped, so `group.sequences` is empty if the search
    has ended; else it is in the order of the search's live beams.
    """
    assert group.beams is not None
    parents = group.sequences
    extensions = group.beams.advance([one.candidates or () for one in parents])
    chosen = {extension.parent for extension in extensions}
    for index, parent in enumerate(parents):
        parent.candidates = None
        if index not in chosen:
            running.vacate(parent, retain=retain)
    next_index = 1 + max(parent.sample_index for parent in parents)
    beams: list[Request] = []
    forked: list[Request] = []
    for extension in extensions:
        parent = parents[extension.parent]
        if parent in beams:  # its own row is taken by a better continuation
            child = child_of(parent, next_index)
            next_index += 1
            row = running.fork(parent, child)
            assert row is not None, "rows and blocks for all beams were kept"
            forked.append(child)
            parent = child
        beams.append(parent)
    for beam, extension in zip(beams, extensions, strict=True):
        row = running.row_of(beam)
        running.tables.append_token(row, extension.token_id)
        beam.output_ids.append(extension.token_id)
        beam.cumulative_logprob = extension.cumulative_logprob
        beam.token_times_s.append(now_s)
    group.sequences, group.is_forked = beams, True
    return forked


def restart_beams(group: Group) -> Request:
    """Back to the prompt: the search is deterministic and finds the same again, and only
    so its beams share their K/V again. Returns the one sequence that is left."""
    (first, *_) = sorted(group.sequences, key=lambda one: one.sample_index)
    first.output_ids, first.token_times_s, first.candidates = [], [], None
    first.cumulative_logprob = 0.0
    group.sequences, group.is_forked = [first], False
    assert group.beams is not None
    group.beams = BeamSearch(group.beams.params)
    return first


def beam_results(
    request: Request, finish: Finish | None, now_s: float
) -> list[RequestUpdate]:
    """The best hypotheses, best first. `finish`: why it ended early, if it did."""
    beams = request.group.beams
    assert beams is not None
    hypotheses = beams.hypotheses()
    # all beams grow at once; those of the last step have ended, and are no sequence's
    times_s = (*request.token_times_s, now_s)
    updates = []
    for index, found in enumerate(hypotheses):
        end = finish or _end_of(found.token_ids, found.ended_by_stop_token)
        metrics = metrics_of(
            request,
            end.reason,
            now_s,
            token_times_s=times_s[: len(found.token_ids)],
            sample_index=index,
        )
        updates.append(
            RequestUpdate(
                request_id=request.request_id,
                new_token_ids=found.token_ids,
                finish=end,
                metrics=metrics,
                sample_index=index,
                score=found.score,
                ends_request=index == len(hypotheses) - 1,
            )
        )
    return updates


def best_samples(group: Group, count: int) -> list[RequestUpdate]:
    """Of the withheld news of a group, those of the `count` likeliest samples, as one
    update each, the likeliest first (by cumulative log-probability, as vLLM's best_of)."""
    by_sample: dict[int, list[RequestUpdate]] = {}
    for update in group.withheld:
        by_sample.setdefault(update.sample_index, []).append(update)
    ranked = sorted(by_sample.values(), key=lambda news: -(news[-1].score or 0.0))[:count]
    return [
        _joined(news, sample_index=index, ends_request=index == len(ranked) - 1)
        for index, news in enumerate(ranked)
    ]


def _joined(
    news: Sequence[RequestUpdate], *, sample_index: int, ends_request: bool
) -> RequestUpdate:
    return news[-1]._replace(
        new_token_ids=tuple(token for update in news for token in update.new_token_ids),
        logprobs=tuple(entry for update in news for entry in update.logprobs),
        prompt_logprobs=tuple(entry for update in news for entry in update.prompt_logprobs),
        sample_index=sample_index,
        ends_request=ends_request,
    )


def _end_of(token_ids: Sequence[int], ended_by_stop_token: bool) -> Finish:
    if ended_by_stop_token:
        return Finish(
            reason=FinishReason.STOP_TOKEN,
            message=f"The beam produced stop token {token_ids[-1]} after "
            f"{len(token_ids) - 1:,} others.",
        )
    return Finish(
        reason=FinishReason.LENGTH,
        message=f"max_tokens={len(token_ids):,} were generated.",
    )
