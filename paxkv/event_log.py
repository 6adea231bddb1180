"""Events as a file: JSON, one event a line, after a first line that describes the pool.

A process that dies leaves at worst a cut last line, which a reader can ask to be told of.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from paxkv.events import Event, EventKind
from paxkv.results import explained, versions

SCHEMA_VERSION = 1  # raise it when a field or a kind changes its name or its meaning
FORMAT = "paxkv events"
BUFFER_BYTES = 1 << 16

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_DEFAULTS = tuple(
    (field.name, field.default) for field in fields(Event) if field.default is not MISSING
)
_KINDS = {kind.value: kind for kind in EventKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """What the first line says of the run."""

    num_blocks_per_group: tuple[int, ...]  # with the null block
    block_size: int  # tokens
    versions: Mapping[str, str | None]  # of Python and packages, as in result rows


class EventLog:
    """A listener that writes each event to a file; use it in a `with`, or close it.

    Fields that have their default are left out. Lines are buffered: whoever reads the
    file of a run that still goes on sees it some events behind.

        with EventLog("events.jsonl", num_blocks_per_group=(512,), block_size=16) as log:
            log(Event(kind=EventKind.STEP, step=1, now_s=0.5, duration_s=0.4))
    """

    def __init__(
        self, path: str | Path, *, num_blocks_per_group: Sequence[int], block_size: int
    ):
        """Starts the file anew.

        Raises:
          ResultsNotWritten: nothing can be written there.
        """
        self.path = Path(path)
        header = LogHeader(
            num_blocks_per_group=tuple(num_blocks_per_group),
            block_size=block_size,
            versions=versions(),
        )
        with explained(self.path):
            self._file = open(  # noqa: SIM115
                self.path, "w", encoding="ascii", newline="\n", buffering=BUFFER_BYTES
            )
            first = {"format": FORMAT, "schema": SCHEMA_VERSION, **asdict(header)}
            try:
                self._file.write(_encode(first) + "\n")
                self._file.flush()  # a run that dies early still leaves a readable file
            except OSError:
                with suppress(OSError):  # it fails to write once more
                    self._file.close()
                raise

    def __call__(self, event: Event) -> None:
        """Writes one event.

        Raises:
          ResultsNotWritten: the disk is full, or the like.
          ValueError: a number of the event is not finite, or the log is closed.
        """
        record = {"kind": event.kind.value, "step": event.step, "now_s": event.now_s}
        for name, default in _DEFAULTS:
            value = getattr(event, name)
            if value != default:
                record[name] = value
        line = _encode(record) + "\n"
        try:
            self._file.write(line)
        except OSError as error:
            with explained(self.path):
                raise error

    def close(self) -> None:
        """Writes what is buffered. More than once does no harm."""
        with explained(self.path):
            self._file.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(
    path: str | Path, *, on_cut_line: Callable[[str], object] | None = None
) -> tuple[LogHeader, Iterator[Event]]:
    """The header, and the events one by one as they are asked for.

    Args:
      on_cut_line: gets the message if the last line was cut off (the run died while it
        wrote); that line is left out. None: it is an error like any other.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no log of this schema, or (from the iterator) a line is malformed;
        names file, line and what is wrong.
    """
    path = Path(path)
    with path.open("rb") as file:
        header = _header(path, file)
    return header, _events(path, on_cut_line)


def _header(path: Path, file: BinaryIO) -> LogHeader:
    first = file.readline()
    if not first:
        raise ValueError(f"{path} is empty; give a file that an EventLog wrote.")
    try:
        record = json.loads(first)
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(
            f"{path}:1: is no header of {FORMAT}; give a file that an EventLog wrote."
        )
    if record.get("schema") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}:1: is of schema {record.get('schema')!r}, and schema {SCHEMA_VERSION} "
            f"can be read; record the run again, or read it with the version that wrote "
            f"it ({record.get('versions')})."
        )
    num_blocks: Any = record.get("num_blocks_per_group")
    block_size: Any = record.get("block_size")
    if not (_is_counts(num_blocks) and num_blocks and min(num_blocks) >= 2) or not (
        _is_count(block_size) and block_size >= 1
    ):
        raise ValueError(
            f"{path}:1: num_blocks_per_group={num_blocks!r} must be a list of integers ≥ 2 "
            f"and block_size={block_size!r} an integer ≥ 1; record the run again."
        )
    return LogHeader(
        num_blocks_per_group=tuple(num_blocks),
        block_size=block_size,
        versions=record.get("versions") or {},
    )


def _events(path: Path, on_cut_line: Callable[[str], object] | None) -> Iterator[Event]:
    with path.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            try:
                event = _event(line)
            except ValueError as error:
                message = f"{path}:{number}: {error}"
                if on_cut_line is None or line.endswith(b"\n"):
                    raise ValueError(message) from error
                on_cut_line(f"{message} The line was cut off; what precedes it counts.")
                return
            yield event


def _event(line: bytes) -> Event:
    """Raises ValueError, which says what is wrong with the line."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error}).") from error
    if not isinstance(record, dict):
        raise ValueError(f"is {record!r}, no object with the fields of an event.")
    for name, value in record.items():
        if name not in _FIELDS:
            raise ValueError(f"has the unknown field {name!r}; known: {[*_FIELDS]}.")
        is_valid, wanted = _FIELDS[name]
        if not is_valid(value):
            raise ValueError(f"has {name}={value!r}, which must be {wanted}.")
        if isinstance(value, list):
            record[name] = tuple(value)
    for name in ("kind", "step", "now_s"):
        if name not in record:
            raise ValueError(f"has no {name}, which every event has.")
    for name in ("now_s", "duration_s"):
        record[name] = float(record.get(name, 0.0))
    record["kind"] = _KINDS[record["kind"]]
    return Event(**record)


def _is_integer(value: Any) -> bool:
    return type(value) is int  # True and False are no numbers here


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_COUNT = (_is_count, "an integer ≥ 0")
_COUNTS = (_is_counts, "a list of integers ≥ 0")
_NUMBER = (_is_number, "a finite number")
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda x: isinstance(x, str) and x in _KINDS, f"one of {[*_KINDS]}"),
    "step": _COUNT,
    "now_s": _NUMBER,
    "group": _COUNT,
    "blocks": _COUNTS,
    "slots": _COUNTS,
    "request_id": (_is_integer, "an integer"),
    "sample_index": _COUNT,
    "num_tokens": _COUNT,
    "duration_s": _NUMBER,
    "detail": (lambda x: isinstance(x, str), "text"),
}
