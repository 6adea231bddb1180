"""A single request: may it enter, does it end here, and what is there to tell of it?"""

from collections.abc import Collection, Sequence

from paxkv.allocators import Allocator
from paxkv.request_options import Adapter
from paxkv.sampling_params import check_token_ids
from paxkv.types import (
    MAX_CANDIDATES,
    Finish,
    FinishReason,
    Plan,
    Request,
    RequestMetrics,
    RowStart,
    StepResult,
    TokenLogprobs,
)

MOST_EOS_IDS = 16  # of a model


def rejection(
    request: Request,
    allocator: Allocator,
    *,
    max_context: int,
    vocab_size: int,
    max_num_seqs: int,
    adapters: Collection[Adapter],
) -> Finish | None:
    """Why the request can never be served, or None if it can."""
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        return Finish(
            reason=FinishReason.REJECTED_EMPTY,
            message="The prompt is empty; give at least 1 token.",
        )
    unknown = _unknown_prompt_token(request, vocab_size) or check_token_ids(
        request.sampling, vocab_size
    )
    if unknown is not None:
        return Finish(reason=FinishReason.REJECTED_BAD_TOKEN, message=unknown)
    if num_prompt >= max_context:
        return Finish(
            reason=FinishReason.REJECTED_TOO_LONG,
            message=f"A prompt of {num_prompt:,} tokens leaves no room for an output in a "
            f"context of {max_context:,}; shorten it to at most {max_context - 1:,}.",
        )
    adapter = request.options.adapter
    if adapter is not None and adapter not in adapters:
        loaded = ", ".join(f"{one.name} {one.version[:12]}" for one in adapters) or "none"
        return Finish(
            reason=FinishReason.REJECTED_NO_ADAPTER,
            message=f"Adapter {adapter.name!r} of version {adapter.version[:12]!r} is not "
            f"loaded ({loaded}); load it, or name one of these.",
        )
    num_top = _num_candidates(request)
    if num_top > MAX_CANDIDATES:
        return Finish(
            reason=FinishReason.REJECTED_NEVER_FITS,
            message=f"Beams look at best_of (or n) + stop tokens = {num_top} candidates a "
            f"step, at most {MAX_CANDIDATES} are offered; lower one of them.",
        )
    if request.sampling.num_beams > max_num_seqs:
        return Finish(
            reason=FinishReason.REJECTED_NEVER_FITS,
            message=f"{request.sampling.num_beams:,} beams run at once, max_num_seqs="
            f"{max_num_seqs:,}; raise it, or lower best_of (or n).",
        )
    obstacle = allocator.check(request)
    if obstacle is not None:
        return Finish(reason=FinishReason.REJECTED_NEVER_FITS, message=obstacle)
    return None


def _num_candidates(request: Request) -> int:
    """Of a beam search; at most, as the model's own stop tokens may be some of these."""
    sampling = request.sampling
    if not sampling.use_beam_search:
        return 0
    return sampling.num_beams + len(sampling.stop_token_ids) + MOST_EOS_IDS


def _unknown_prompt_token(request: Request, vocab_size: int) -> str | None:
    ids = request.prompt_ids
    if min(ids) >= 0 and max(ids) < vocab_size:
        return None
    position = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < vocab_size)
    return (
        f"The prompt has token id {ids[position]} at position {position}, but the model's "
        f"ids are 0..{vocab_size - 1}; use this model's own tokenizer."
    )


def row_start(request: Request, row: int) -> RowStart:
    """Tells an executor that the request now owns `row`."""
    return RowStart(
        row=row,
        request_id=request.request_id,
        num_prompt_tokens=len(request.prompt_ids),
        sampling=request.sampling,
        sample_index=request.sample_index,
        num_top=_num_top(request),
        options=request.options,
    )


def _num_top(request: Request) -> int | None:
    """Alternatives per token whose log-probabilities the executor must tell."""
    sampling, beams = request.sampling, request.group.beams
    if beams is not None:
        return beams.num_candidates
    if sampling.logprobs is None and sampling.num_sequences > sampling.n:
        return 0  # best_of ranks by the likelihood of the chosen
    return sampling.logprobs


def stop_after(
    request: Request, token_id: int, eos_token_ids: Collection[int], max_context: int
) -> Finish | None:
    """Whether `token_id`, the newest of the request's outputs, ends it, and why."""
    sampling, num_outputs = request.sampling, len(request.output_ids)
    is_stop = token_id in sampling.stop_token_ids or (
        token_id in eos_token_ids and not sampling.ignore_eos
    )
    if is_stop and num_outputs >= sampling.min_tokens:
        return Finish(
            reason=FinishReason.STOP_TOKEN,
            message=f"The model produced stop token {token_id} after "
            f"{num_outputs - 1:,} others.",
        )
    if num_outputs >= sampling.max_tokens:
        return Finish(
            reason=FinishReason.LENGTH,
            message=f"max_tokens={sampling.max_tokens:,} were generated.",
        )
    if len(request.prompt_ids) + num_outputs >= max_context:
        return Finish(
            reason=FinishReason.LENGTH,
            message=f"The context of {max_context:,} tokens is full: "
            f"{len(request.prompt_ids):,} of the prompt and {num_outputs:,} of "
            f"max_tokens={sampling.max_tokens:,}.",
        )
    return None


def ended_early(request: Request, reason: FinishReason) -> Finish:
    """The end of a request that its caller, or the text of its output, stopped."""
    return Finish(
        reason=reason,
        message=f"{reason.value} It had {len(request.output_ids):,} of "
        f"max_tokens={request.sampling.max_tokens:,}.",
    )


def metrics_of(
    request: Request,
    reason: FinishReason,
    finish_s: float,
    *,
    token_times_s: Sequence[float] | None = None,
    sample_index: int | None = None,
) -> RequestMetrics:
    """The record of a request that ended, or of one of its samples.

    Args:
      token_times_s: of beams, whose outputs are no sequence's own.
    """
    times_s, num_outputs = request.token_times_s, len(request.output_ids)
    if token_times_s is not None:
        times_s, num_outputs = token_times_s, len(token_times_s)
    return RequestMetrics(
        request_id=request.request_id,
        arrival_s=request.arrival_s,
        first_scheduled_s=request.first_scheduled_s,
        token_times_s=tuple(times_s),
        finish_s=finish_s,
        num_prompt_tokens=len(request.prompt_ids),
        num_output_tokens=num_outputs,
        num_preemptions=request.num_preemptions,
        num_recomputed_tokens=request.num_recomputed_tokens,
        reason=reason,
        sample_index=request.sample_index if sample_index is None else sample_index,
        num_cached_tokens=request.num_cached_tokens or 0,
        num_swaps=request.num_swaps,
        tenant=request.options.tenant,
    )


def new_logprobs(plan: Plan, result: StepResult) -> list[tuple[TokenLogprobs, ...]]:
    """Per slice: those of the token that it sampled, if its request asked."""
    if not result.logprobs:
        return [()] * len(plan.requests)
    return [() if entry is None else (entry,) for entry in result.logprobs]


def new_prompt_logprobs(plan: Plan, result: StepResult) -> list[tuple[TokenLogprobs, ...]]:
    """Per slice: those of its prompt tokens, less what was told before a preemption."""
    if not result.prompt_logprobs:
        return [()] * len(plan.requests)
    news = []
    slices = zip(plan.requests, plan.starts.tolist(), result.prompt_logprobs, strict=True)
    for request, start, entries in slices:
        new = (entries or ())[max(request.num_prompt_logprobs - start, 0) :]
        request.num_prompt_logprobs += len(new)
        news.append(new)
    return news
