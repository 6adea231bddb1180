"""Reads a trace of any format: rows in order of arrival, and what was no row."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paxkv.workloads.sessions import Session
from paxkv.workloads.traces.formats import AUTO, FORMATS, Record, format_of
from paxkv.workloads.traces.lines import MAX_LINE_CHARS
from paxkv.workloads.traces.rows import CountTokens, TraceRow, approximate_tokens

MOST_SHOWN = 100  # malformed lines whose reason is kept; all are counted
LATEST_S = 1e10  # after which a float tells microseconds apart no more; now is 1.8e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What a file holds, as far as it was read."""

    num_rows: int = 0  # that are requests or sessions
    num_malformed: int = 0
    malformed: tuple[str, ...] = ()  # "line 7: why", of the first `MOST_SHOWN`


class TooManyMalformed(ValueError):
    """More rows were malformed than the caller allows."""


class TraceReader:
    """Rows of a trace, read anew by each iteration.

    A row is a `TraceRow`, whose time counts from the first row's; in this project's own
    format it is a whole `Session`. Malformed rows are in `report`: those that the format
    refuses, that ask for nothing, and that come before the row above them. The caller
    decides what that means.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        trace_format: str = AUTO,
        sort: bool = False,
        max_malformed: int | None = None,
        count_tokens: CountTokens = approximate_tokens,
    ):
        """
        Args:
          trace_format: a name in `FORMATS`, or "auto": by the first line.
          sort: by arrival, which takes the whole file into memory. Without, a row that is
            earlier than the one above it is malformed.
          max_malformed: more such rows are an error; None: any number is told of, no more.
          count_tokens: for formats that have texts.

        Raises:
          ValueError: the file cannot be read, is empty, or is of no known format.
        """
        self.path = os.fspath(path)
        first_line = self._first_line()
        found = format_of(first_line) if trace_format == AUTO else trace_format
        if found is None:
            raise ValueError(
                f"trace {self.path!r} has no known format; its first line begins "
                f"{first_line[:80]!r}. Name one of {', '.join(FORMATS)} as trace_format."
            )
        if found not in FORMATS:
            raise ValueError(
                f"trace_format={found!r} is none of {', '.join((AUTO, *FORMATS))}."
            )
        self.trace_format = found
        self._sort = sort
        self._max_malformed = max_malformed
        self._count_tokens = count_tokens
        self._num_rows = 0
        self._num_malformed = 0
        self._malformed: list[str] = []

    @property
    def report(self) -> TraceReport:
        """Of the newest iteration, as far as it came."""
        return TraceReport(
            num_rows=self._num_rows,
            num_malformed=self._num_malformed,
            malformed=tuple(self._malformed),
        )

    def __iter__(self) -> Iterator[Record]:
        """Raises:
        ValueError: the file's columns are not those of its format, or no row is left.
        """
        self._num_rows = self._num_malformed = 0
        self._malformed = []
        for record in self._shifted(self._ordered()):
            self._num_rows += 1
            yield record
        if not self._num_rows:
            first = f"; {self._malformed[0]}" if self._malformed else ""
            raise ValueError(
                f"trace {self.path!r} has no request of format {self.trace_format!r}: "
                f"{self._num_malformed} lines are malformed{first}."
            )

    def _first_line(self) -> str:
        try:
            with self._open() as file:
                first_line = file.readline(MAX_LINE_CHARS)
        except OSError as error:
            raise ValueError(
                f"trace {self.path!r} cannot be read: {error.strerror}. Traces are no "
                "part of this project; configs/workloads say where to get them."
            ) from None
        if not first_line:
            raise ValueError(f"trace {self.path!r} is empty; it needs a request.")
        return first_line

    def _open(self):
        # a mark of the byte order is no part of the first line; junk becomes a sign that no
        # format has
        return open(self.path, encoding="utf-8-sig", errors="replace")

    def _told(self, number: int, why: str) -> None:
        self._num_malformed += 1
        if len(self._malformed) < MOST_SHOWN:
            self._malformed.append(f"line {number}: {why}")
        if self._max_malformed is not None and self._num_malformed > self._max_malformed:
            raise TooManyMalformed(
                f"trace {self.path!r} has more than {self._max_malformed} malformed rows: "
                f"{'; '.join(self._malformed[:3])}. Repair them, or raise "
                "--config.workload.max_malformed to go on without them."
            )

    def _sound(self) -> Iterator[tuple[int, Record]]:
        with self._open() as file:
            kind = FORMATS[self.trace_format]
            try:
                for number, record in kind.rows(file, self._told, self._count_tokens):
                    if why := _unusable(record):
                        self._told(number, why)
                    else:
                        yield number, record
            except TooManyMalformed:
                raise
            except ValueError as error:
                raise ValueError(
                    f"trace {self.path!r} is not of format {self.trace_format!r}: {error}."
                ) from None

    def _ordered(self) -> Iterator[Record]:
        if self._sort:
            records = [record for _, record in self._sound()]
            yield from sorted(records, key=lambda record: record.arrival_s or 0.0)
            return
        newest_s: float | None = None
        for number, record in self._sound():
            arrival_s = record.arrival_s
            if arrival_s is not None and newest_s is not None and arrival_s < newest_s:
                self._told(
                    number,
                    f"arrives at {arrival_s} s, before the row above it at {newest_s} s; "
                    "set sort_trace to sort the file",
                )
                continue
            newest_s = newest_s if arrival_s is None else arrival_s
            yield record

    def _shifted(self, records: Iterator[Record]) -> Iterator[Record]:
        start_s: float | None = None
        for record in records:
            if start_s is None:
                start_s = record.arrival_s
            yield _shift(record, start_s)


def _unusable(record: Record) -> str:
    """Why no request can be made of it; "": one can."""
    if (record.arrival_s or 0.0) > LATEST_S:
        return f"arrives at {record.arrival_s} s; times up to {LATEST_S:g} s are possible"
    if isinstance(record, TraceRow):
        for name in ("input_tokens", "output_tokens"):
            if not getattr(record, name):
                return f"{name}=0; a request has at least 1"
    return ""


def _shift(record: Record, start_s: float | None) -> Record:
    """Sessions of this project's own format already count from the start of the run."""
    if isinstance(record, Session) or record.arrival_s is None or start_s is None:
        return record
    return replace(record, arrival_s=record.arrival_s - start_s)
