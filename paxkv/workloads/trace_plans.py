"""Plans of the sessions that a trace holds."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from paxkv.workloads.plans import PlannedTurn, SessionPlan
from paxkv.workloads.sessions import Session
from paxkv.workloads.tokens import Segment, fresh_key, hash_key
from paxkv.workloads.traces.formats import Record
from paxkv.workloads.traces.rows import TraceRow
from paxkv.workloads.workload_config import WorkloadConfig


def trace_plans(
    records: Iterable[Record], config: WorkloadConfig, arrivals_s: Iterator[float]
) -> Iterator[SessionPlan]:
    """One a row. Rows without times that name the same session, one after the other, are
    its turns, of which the first `config.max_turns` are taken.

    Args:
      arrivals_s: used unless `config.arrival` is "trace".

    Raises:
      ValueError: the times of a trace are asked for that has none.
    """
    grouped = groupby(enumerate(records), key=lambda item: _conversation(*item))
    for number, (_, items) in enumerate(grouped):
        rows = [record for _, record in items]
        arrival_s = next(arrivals_s)
        if config.arrival == "trace":
            arrival_s = _time_of(rows[0], config) / config.rate_scale
        if isinstance(rows[0], Session):
            yield _own_plan(rows[0], arrival_s)
            continue
        turns = tuple(
            PlannedTurn(segments=_segments(row, number, i), output_tokens=row.output_tokens)
            for i, row in enumerate(rows[: config.max_turns])
            if isinstance(row, TraceRow)
        )
        yield SessionPlan(
            arrival_s=arrival_s,
            turns=turns,
            max_prompt_tokens=config.max_prompt_tokens,
            num_samples=config.num_samples,
            use_beam_search=config.use_beam_search,
        )


def _time_of(record: Record, config: WorkloadConfig) -> float:
    if record.arrival_s is None:
        raise ValueError(
            f"workload.arrival='trace', but {config.trace_path!r} has no times; use "
            "'poisson' or another arrival."
        )
    return record.arrival_s


def _conversation(number: int, record: Record) -> tuple[str | None, int]:
    """Equal for the turns of one conversation, different for all else."""
    if isinstance(record, Session) or record.arrival_s is not None:
        return None, number
    return (None, number) if record.session is None else (record.session, -1)


def _segments(row: TraceRow, session: int, turn: int) -> tuple[Segment, ...]:
    """The known tokens; or those of the hashes, and where these do not cover the prompt,
    others that nothing shares."""
    if row.prompt_ids:
        return (Segment(num_tokens=len(row.prompt_ids), ids=row.prompt_ids),)
    left = row.input_tokens
    segments: list[Segment] = []
    for hash_id in row.hash_ids:
        if left <= 0:
            break
        num_tokens = min(left, row.hash_block_tokens)
        segments.append(Segment(num_tokens=num_tokens, key=hash_key(hash_id)))
        left -= num_tokens
    if left > 0:
        segments.append(Segment(num_tokens=left, key=fresh_key(session, turn)))
    return tuple(segments)


def _own_plan(session: Session, arrival_s: float) -> SessionPlan:
    """All that the file says, but for the time."""
    turns = tuple(
        PlannedTurn(
            segments=(Segment(num_tokens=len(turn.prompt_ids), ids=turn.prompt_ids),),
            output_tokens=turn.max_tokens,
            think_s=turn.think_s,
        )
        for turn in session.turns
    )
    return SessionPlan(
        arrival_s=arrival_s,
        turns=turns,
        max_prompt_tokens=session.max_prompt_tokens,
        options=session.options,
        num_samples=session.num_samples,
        use_beam_search=session.use_beam_search,
    )
