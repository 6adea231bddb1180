"""A single request: may it enter, does it end here, and what is there to tell of it?"""

from collections.abc import Collection

from paxkv.allocators import Allocator
from paxkv.types import (
    Finish,
    FinishReason,
    Plan,
    Request,
    RequestMetrics,
    StepResult,
    TokenLogprobs,
)


def rejection(
    request: Request, allocator: Allocator, *, max_context: int, vocab_size: int
) -> Finish | None:
    """Why the request can never be served, or None if it can."""
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        return Finish(
            reason=FinishReason.REJECTED_EMPTY,
            message="The prompt is empty; give at least 1 token.",
        )
    unknown = _first_unknown_token(request, vocab_size)
    if unknown is not None:
        return Finish(reason=FinishReason.REJECTED_BAD_TOKEN, message=unknown)
    if num_prompt >= max_context:
        return Finish(
            reason=FinishReason.REJECTED_TOO_LONG,
            message=f"A prompt of {num_prompt:,} tokens leaves no room for an output in a "
            f"context of {max_context:,}; shorten it to at most {max_context - 1:,}.",
        )
    obstacle = allocator.check(request)
    if obstacle is not None:
        return Finish(reason=FinishReason.REJECTED_NEVER_FITS, message=obstacle)
    return None


def _first_unknown_token(request: Request, vocab_size: int) -> str | None:
    named = {
        "The prompt": request.prompt_ids,
        "stop_token_ids": request.sampling.stop_token_ids,
        "logit_bias": tuple(request.sampling.logit_bias or ()),
    }
    for where, ids in named.items():
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            token_id = next(i for i in ids if not 0 <= i < vocab_size)
            return (
                f"{where} names token id {token_id}, but the model's ids are "
                f"[0, {vocab_size:,}); use its own tokenizer."
            )
    return None


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
    if request.num_tokens >= max_context:
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


def metrics_of(request: Request, reason: FinishReason, finish_s: float) -> RequestMetrics:
    """The record of a request that ended."""
    return RequestMetrics(
        request_id=request.request_id,
        arrival_s=request.arrival_s,
        first_scheduled_s=request.first_scheduled_s,
        token_times_s=tuple(request.token_times_s),
        finish_s=finish_s,
        num_prompt_tokens=len(request.prompt_ids),
        num_output_tokens=len(request.output_ids),
        num_preemptions=request.num_preemptions,
        num_recomputed_tokens=request.num_recomputed_tokens,
        reason=reason,
    )


def new_logprobs(result: StepResult, index: int) -> tuple[TokenLogprobs, ...]:
    """Those of the token that slice `index` sampled, if they were asked for."""
    entry = result.logprobs[index] if result.logprobs else None
    return () if entry is None else (entry,)


def new_prompt_logprobs(
    plan: Plan, result: StepResult, index: int
) -> tuple[TokenLogprobs, ...]:
    """Those of slice `index`, less what was told before a preemption."""
    entries = result.prompt_logprobs[index] if result.prompt_logprobs else None
    if not entries:
        return ()
    request = plan.requests[index]
    new = entries[max(request.num_prompt_logprobs - int(plan.starts[index]), 0) :]
    request.num_prompt_logprobs += len(new)
    return new
