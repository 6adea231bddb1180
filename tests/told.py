"""What an engine tells of its requests until all have ended."""

from collections.abc import Callable
from dataclasses import dataclass, field

from paxkv.engine import Engine
from paxkv.types import FinishReason, RequestMetrics, StepMetrics

Sample = tuple[int, int]  # request id, sample index


@dataclass
class Told:
    tokens: dict[Sample, tuple[int, ...]] = field(default_factory=dict)
    reasons: dict[Sample, FinishReason] = field(default_factory=dict)
    metrics: dict[Sample, RequestMetrics] = field(default_factory=dict)
    steps: list[StepMetrics] = field(default_factory=list)


def serve(
    engine: Engine,
    *,
    most_steps: int = 2_000,
    between: Callable[[], None] = lambda: None,
) -> Told:
    """Steps until nothing is left; `between` any two steps something may happen.

    Raises:
      AssertionError: requests are unfinished after `most_steps`.
    """
    told = Told()
    for _ in range(most_steps):
        if not engine.has_unfinished:
            return told
        between()
        outcome = engine.step()
        if outcome.metrics is not None:
            told.steps.append(outcome.metrics)
        for update in outcome.updates:
            sample = update.request_id, update.sample_index
            told.tokens[sample] = told.tokens.get(sample, ()) + update.new_token_ids
            if update.finish is not None and update.metrics is not None:
                assert sample not in told.reasons, f"{sample} ended twice"
                told.reasons[sample] = update.finish.reason
                told.metrics[sample] = update.metrics
    raise AssertionError(f"livelock: requests are unfinished after {most_steps} steps")
