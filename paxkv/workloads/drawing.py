"""Draws the sessions of a workload, one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from paxkv.workloads.arrivals import arrival_times_s
from paxkv.workloads.lengths import length_pairs
from paxkv.workloads.plans import SessionPlan, clip, context_needed, scale, session_of
from paxkv.workloads.sessions import Session
from paxkv.workloads.structures import STRUCTURES
from paxkv.workloads.tokens import MIN_VOCAB_SIZE
from paxkv.workloads.trace_plans import trace_plans
from paxkv.workloads.traces.reading import TraceReader, TraceReport
from paxkv.workloads.traces.rows import CountTokens, approximate_tokens
from paxkv.workloads.workload_config import WorkloadConfig

MOST_NOTED = 10  # malformed rows that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReport:
    """What was drawn so far."""

    num_sessions: int = 0
    num_requests: int = 0  # turns of all sessions
    input_tokens: int = 0  # of prompts, without the history that later turns repeat
    output_tokens: int = 0  # of one sample of each
    num_clipped: int = 0  # sessions that were cut to fit in the context
    num_dropped: int = 0  # sessions that did not fit, and were left out
    trace: TraceReport | None = None  # what the file holds, and what was malformed

    @property
    def losses(self) -> dict[str, int]:
        """Metrics of a run: how much was not served as the workload has it."""
        return {
            "num_clipped": self.num_clipped,
            "num_dropped": self.num_dropped,
            "num_malformed": 0 if self.trace is None else self.trace.num_malformed,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in sentences, with malformed rows by line; () if there is nothing."""
        notes = []
        if self.num_clipped:
            notes.append(f"{self.num_clipped:,} sessions were cut to fit in the context.")
        if self.num_dropped:
            notes.append(f"{self.num_dropped:,} sessions did not fit and were left out.")
        if self.trace is not None and self.trace.num_malformed:
            count, shown = self.trace.num_malformed, self.trace.malformed[:MOST_NOTED]
            more = f"; and {count - len(shown):,} more" if count > len(shown) else ""
            notes.append(
                f"{count:,} rows of the trace are malformed and were left out: "
                f"{'; '.join(shown)}{more}."
            )
        return tuple(notes)


class Workload:
    """Sessions in order of arrival. Each iteration draws the same ones again, and none is
    held after it was given out; `report` tells of the newest iteration.

    Example:
      workload = Workload(WorkloadConfig(num_requests=2), max_context=2048, vocab_size=100)
      lengths = [len(session.turns[0].prompt_ids) for session in workload]
    """

    def __init__(
        self,
        config: WorkloadConfig,
        *,
        max_context: int,
        vocab_size: int,
        count_tokens: CountTokens = approximate_tokens,
    ):
        """
        Args:
          max_context: tokens of a prompt and its output together, at most.
          vocab_size: ids are in [1, vocab_size).
          count_tokens: for traces of texts.

        Raises:
          ValueError: context or vocabulary are too small, or the trace cannot be read.
        """
        _require_room(config, max_context, vocab_size)
        self.config = config
        self._max_context = max_context
        self._vocab_size = vocab_size
        self._trace: TraceReader | None = None
        if config.trace_path is not None:
            self._trace = TraceReader(
                config.trace_path,
                trace_format=config.trace_format,
                sort=config.sort_trace,
                max_malformed=config.max_malformed,
                count_tokens=count_tokens,
            )
        self._report = WorkloadReport()

    @property
    def report(self) -> WorkloadReport:
        """Of the newest iteration, as far as it came."""
        trace = self._trace
        return self._report if trace is None else replace(self._report, trace=trace.report)

    def __iter__(self) -> Iterator[Session]:
        """Raises:
        ValueError: a session exceeds the context (`too_long="refuse"`), a prompt of a
          trace the vocabulary, the trace has more than `max_malformed` such rows, or
          no session fits (`too_long="drop"`).
        """
        self._report = WorkloadReport()
        plans = islice(_plans(self.config, self._trace), self.config.num_requests)
        for number, plan in enumerate(plans):
            fitted = self._fitted(plan, number)
            if fitted is None:
                self._add(num_dropped=1)
                continue
            session = session_of(fitted, vocab_size=self._vocab_size, seed=self.config.seed)
            self._require_known_ids(session, number)
            self._add(
                num_sessions=1,
                num_requests=len(fitted.turns),
                input_tokens=sum(turn.input_tokens for turn in fitted.turns),
                output_tokens=sum(turn.output_tokens for turn in fitted.turns),
            )
            yield session
        if self._report.num_dropped and not self._report.num_sessions:
            raise ValueError(
                f"none of the workload's {self._report.num_dropped:,} sessions fits in "
                f"max_context={self._max_context} tokens. Use a model with a longer "
                "context, or set --config.workload.too_long to 'clip' or 'scale'."
            )

    def _fitted(self, plan: SessionPlan, number: int) -> SessionPlan | None:
        """The plan as it fits in the context; None: it is left out."""
        config, max_context = self.config, self._max_context
        if (from_tokens := _shrinks_from(config, max_context)) is not None:
            plan = scale(plan, max_context, from_tokens)
        needed = context_needed(plan)
        if needed <= max_context:
            return plan
        if config.too_long == "drop":
            return None
        if config.too_long in ("clip", "scale"):
            self._add(num_clipped=1)
            return clip(plan, max_context)
        raise ValueError(
            f"session {number} of the workload needs a context of {needed} tokens, the "
            f"model has {max_context=}. Use a model with a longer context, or set "
            "--config.workload.too_long to 'clip', 'drop' or 'scale'."
        )

    def _require_known_ids(self, session: Session, number: int) -> None:
        if self._trace is None:
            return
        highest = max(max(turn.prompt_ids) for turn in session.turns)
        if highest >= self._vocab_size:
            raise ValueError(
                f"session {number} of trace {self._trace.path!r} has token {highest}, the "
                f"vocabulary has {self._vocab_size}; use the model it was made for."
            )

    def _add(self, **counts: int) -> None:
        report = self._report
        added = {name: getattr(report, name) + count for name, count in counts.items()}
        self._report = replace(report, **added)


def make_sessions(
    config: WorkloadConfig, *, max_context: int, vocab_size: int
) -> Iterator[Session]:
    """`Workload`, for callers who need no report of it."""
    return iter(Workload(config, max_context=max_context, vocab_size=vocab_size))


def _require_room(config: WorkloadConfig, max_context: int, vocab_size: int) -> None:
    if max_context < 2:
        raise ValueError(f"{max_context=} holds no prompt and output; need ≥ 2.")
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"{vocab_size=} cannot tell prompts apart; need ≥ {MIN_VOCAB_SIZE}."
        )
    cap = config.max_prompt_tokens
    if cap is None:
        return
    if (from_tokens := _shrinks_from(config, max_context)) is not None:
        cap = cap * max_context // from_tokens
    if cap >= max_context:
        raise ValueError(
            f"workload.max_prompt_tokens={config.max_prompt_tokens} leaves no output in "
            f"{max_context=}; lower it."
        )


def _shrinks_from(config: WorkloadConfig, max_context: int) -> int | None:
    """The context from which all lengths are scaled down; None: they stay."""
    from_tokens = config.scale_from
    if config.too_long != "scale" or from_tokens is None or from_tokens <= max_context:
        return None
    return from_tokens


def _plans(config: WorkloadConfig, trace: TraceReader | None) -> Iterator[SessionPlan]:
    """Without end, but for those of a trace."""
    seeds = np.random.SeedSequence(config.seed).spawn(3)
    lengths_rng, arrivals_rng, structure_rng = map(np.random.default_rng, seeds)
    arrivals_s = arrival_times_s(
        arrivals_rng,
        config.arrival,
        rate_per_s=config.rate_per_s,
        burstiness_cv=config.burstiness_cv,
    )
    if trace is not None:
        yield from trace_plans(trace, config, arrivals_s)
        return
    pairs = length_pairs(
        lengths_rng,
        config.lengths,
        input_tokens=config.input_tokens,
        output_tokens=config.output_tokens,
        input_sigma=config.input_sigma,
        output_sigma=config.output_sigma,
    )
    sessions = STRUCTURES[config.structure](config, structure_rng, pairs)
    for arrival_s, turns in zip(arrivals_s, sessions, strict=False):
        yield SessionPlan(
            arrival_s=arrival_s,
            turns=turns,
            max_prompt_tokens=config.max_prompt_tokens,
            num_samples=config.num_samples,
            use_beam_search=config.use_beam_search,
        )
