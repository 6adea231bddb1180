"""Steps that an engine ran, with their times: what a cost model is fitted to."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from paxkv.checks import integer_in, named, number_where
from paxkv.engine import Executor
from paxkv.results import append_row
from paxkv.simulation.work import StepWork, step_work
from paxkv.types import Plan, StepMetrics, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that really ran."""

    work: StepWork
    duration_s: float  # the executor's
    host_s: float  # planning and committing
    block_size: int  # tokens


class RecordingExecutor:
    """Runs plans on another executor and keeps what each of them asked for.

    ```
    engine.executor = recorder = RecordingExecutor(engine.executor, block_size, windows)
    record = recorder.record(engine.step().metrics)
    ```
    """

    def __init__(
        self, executor: Executor, block_size: int, windows: Sequence[int | None] = (None,)
    ):
        self.executor = executor
        self.block_size = block_size
        self.windows = tuple(windows)
        self._work: StepWork | None = None
        self._counting_s = 0.0

    def run(self, plan: Plan) -> StepResult:
        """As the other executor does; the engine counts our own time as the host's."""
        result = self.executor.run(plan)
        started_s = time.perf_counter()
        self._work = step_work(plan, self.block_size, self.windows)
        self._counting_s = time.perf_counter() - started_s
        return result

    def record(self, metrics: StepMetrics | None) -> StepRecord | None:
        """Of the step that just ended; None if the engine had nothing to run."""
        work, self._work = self._work, None
        if metrics is None or work is None:
            return None
        return StepRecord(
            work=work,
            duration_s=metrics.duration_s,
            host_s=max(metrics.host_s - self._counting_s, 0.0),
            block_size=self.block_size,
        )


def step_row(record: StepRecord) -> dict[str, Any]:
    """A record as one flat JSON object."""
    times = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "work"}
    return asdict(record.work) | times


def append_step(path: Path, record: StepRecord) -> None:
    """Adds a line to a file of steps.

    Raises:
      ResultsNotWritten: the line could not be written.
    """
    append_row(path, step_row(record))


def write_steps(path: Path, records: Iterable[StepRecord]) -> None:
    """Adds a line per record.

    Raises:
      ResultsNotWritten: a line could not be written.
    """
    for record in records:
        append_step(path, record)


def read_steps(path: Path) -> list[StepRecord]:
    """The steps of a file, in its order.

    Raises:
      ValueError: names the first line that is no step, and what is wrong with it.
      OSError: the file cannot be read.
    """
    records = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                records.append(_record(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{path}, line {number}, is no step: {error} Each line is a JSON "
                    "object with the fields of StepWork, duration_s, host_s and "
                    "block_size, as serve_trace with config.record_steps writes."
                ) from error
    if not records:
        raise ValueError(f"{path} has no steps; name a file that serve_trace wrote.")
    return records


_COUNT = integer_in(0, None, "it is a count")
_SECONDS = number_where(lambda x: x >= 0, "≥ 0", "it is a time in seconds")
_GROUPED = (
    "decode_context_tokens",
    "decode_read_tokens",
    "prefill_pairs",
    "prefill_context_tokens",
)


def _record(row: Any) -> StepRecord:
    if not isinstance(row, dict):
        raise TypeError(f"{row!r} is no object.")
    names = [field.name for field in fields(StepWork)]
    expected = {*names, "duration_s", "host_s", "block_size"}
    if row.keys() != expected:
        missing, unknown = sorted(expected - row.keys()), sorted(row.keys() - expected)
        raise ValueError(f"it lacks {missing} and has unknown {unknown}.")
    work: dict[str, Any] = {}
    for name in names:
        if name in _GROUPED:
            work[name] = tuple(named(name, count, _COUNT) for count in row[name])
        else:
            work[name] = named(name, row[name], _COUNT)
    if len({len(work[name]) for name in _GROUPED}) != 1:
        raise ValueError("its lists must have one entry per cache group.")
    return StepRecord(
        work=StepWork(**work),
        duration_s=named("duration_s", row["duration_s"], _SECONDS),
        host_s=named("host_s", row["host_s"], _SECONDS),
        block_size=named("block_size", row["block_size"], integer_in(1, None, "use ≥ 1")),
    )
