"""Sessions before their tokens are drawn: lengths, and which pieces are shared.

Here they are made to fit in a model's context.
"""

from dataclasses import dataclass, field, replace

from paxkv.request_options import RequestOptions
from paxkv.workloads.sessions import Session, Turn
from paxkv.workloads.tokens import Segment, prompt_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """What a turn adds to the conversation, and how much is generated."""

    segments: tuple[Segment, ...]
    output_tokens: int
    think_s: float | int = 0.0

    @property
    def input_tokens(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """One session to come."""

    arrival_s: float | int
    turns: tuple[PlannedTurn, ...]
    # of the conversation, the prompt keeps only the newest tokens; None: all
    max_prompt_tokens: int | None = None
    options: RequestOptions = field(default_factory=RequestOptions)
    num_samples: int = 1
    use_beam_search: bool = False


def context_needed(plan: SessionPlan) -> int:
    """Most tokens, prompt and output, that a turn of the session holds."""
    history = needed = 0
    for turn in plan.turns:
        prompt = history + turn.input_tokens
        if plan.max_prompt_tokens is not None:
            prompt = min(prompt, plan.max_prompt_tokens)
        needed = max(needed, prompt + turn.output_tokens)
        history += turn.input_tokens + turn.output_tokens
    return needed


def scale(plan: SessionPlan, max_context: int, from_tokens: int) -> SessionPlan:
    """All lengths times `max_context / from_tokens`, rounded down, at least 1.

    Shared pieces stay shared, since each is scaled by itself.
    """

    def scaled(num_tokens: int) -> int:
        return max(1, num_tokens * max_context // from_tokens)

    turns = tuple(
        replace(
            turn,
            segments=tuple(s.cut(scaled(s.num_tokens)) for s in turn.segments),
            output_tokens=scaled(turn.output_tokens),
        )
        for turn in plan.turns
    )
    cap = plan.max_prompt_tokens
    return replace(
        plan, turns=turns, max_prompt_tokens=None if cap is None else scaled(cap)
    )


def clip(plan: SessionPlan, max_context: int) -> SessionPlan:
    """Cuts what does not fit: an output keeps its length as long as one token of prompt
    fits beside it, and the prompt loses its end, so that shared beginnings stay.

    A session ends before the first turn for which no two tokens are left.
    """
    cap, history = plan.max_prompt_tokens, 0
    if cap is not None and cap >= max_context:  # a trace's own; no prompt gets so long
        cap = None
    turns: list[PlannedTurn] = []
    for turn in plan.turns:
        held = history if cap is None else min(history, cap - 1)
        if max_context - held < 2:
            break
        output = min(turn.output_tokens, max_context - held - 1)
        segments = turn.segments
        if cap is None:
            segments = _first(segments, max_context - held - output)
        else:
            prompt = min(history + turn.input_tokens, cap)
            output = min(output, max_context - prompt)
        turns.append(replace(turn, segments=segments, output_tokens=output))
        history += turns[-1].input_tokens + output
    return replace(plan, turns=tuple(turns))


def session_of(plan: SessionPlan, *, vocab_size: int, seed: int) -> Session:
    """Draws the tokens of a plan."""
    turns = tuple(
        Turn(
            prompt_ids=prompt_ids(turn.segments, vocab_size=vocab_size, seed=seed),
            max_tokens=turn.output_tokens,
            think_s=float(turn.think_s),
        )
        for turn in plan.turns
    )
    return Session(
        arrival_s=float(plan.arrival_s),
        turns=turns,
        options=plan.options,
        num_samples=plan.num_samples,
        use_beam_search=plan.use_beam_search,
        max_prompt_tokens=plan.max_prompt_tokens,
    )


def _first(segments: tuple[Segment, ...], num_tokens: int) -> tuple[Segment, ...]:
    kept: list[Segment] = []
    for segment in segments:
        if num_tokens <= 0:
            break
        kept.append(segment.cut(min(segment.num_tokens, num_tokens)))
        num_tokens -= segment.num_tokens
    return tuple(kept)
