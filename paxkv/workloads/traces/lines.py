"""Lines of text files, numbered, and the values in them; what is wrong is a ValueError."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from io import TextIOBase
from typing import Any

from paxkv.checks import MAX_NUMBER
from paxkv.workloads.traces.rows import Malformed

MAX_LINE_CHARS = 2**26  # a longer line is no line of a trace; it is never held whole
MOST_TOKENS = 2**31  # of one request, not included


def numbered_lines(file: TextIOBase, malformed: Malformed) -> Iterator[tuple[int, str]]:
    """Each line with its number, from 1 on."""
    number = 0
    while line := file.readline(MAX_LINE_CHARS):
        number += 1
        is_whole = len(line) < MAX_LINE_CHARS or line.endswith("\n")
        if is_whole:
            yield number, line
            continue
        while line and not line.endswith("\n"):
            line = file.readline(MAX_LINE_CHARS)
        malformed(number, f"is longer than {MAX_LINE_CHARS} characters")


def csv_rows(
    file: TextIOBase, required: Sequence[str], malformed: Malformed, optional: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Values of the required columns, in that order, and of the optional one, "" if absent.

    Raises:
      ValueError: the header lacks a required column.
    """
    lines = numbered_lines(file, malformed)
    header = header_fields(next(lines, (1, ""))[1])
    missing = [name for name in required if name not in header]
    if missing:
        raise ValueError(
            f"its header has no column {', '.join(missing)}; it has {', '.join(header)}"
        )
    places = [header.index(name) for name in required]
    for number, line in lines:
        try:
            fields = next(csv.reader([line]), [])
        except csv.Error as error:
            malformed(number, str(error))
            continue
        if len(fields) != len(header):
            malformed(number, f"has {len(fields)} fields, the header {len(header)}")
            continue
        values = [fields[place].strip() for place in places]
        values.append(fields[header.index(optional)].strip() if optional in header else "")
        yield number, values


def header_fields(line: str) -> list[str]:
    """Names of the columns; those of a line that is no header are of no use."""
    try:
        return [field.strip() for field in next(csv.reader([line[:4096]]), [])]
    except csv.Error:
        return []


def json_object(line: str) -> dict[str, Any]:
    """The object that the line is."""
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"is a {type(row).__name__}, not an object")
    return row


def has_keys(line: str, *names: str) -> bool:
    """Whether the line is an object with these keys."""
    try:
        return json_object(line).keys() >= set(names)
    except ValueError:
        return False


def require_keys(row: dict[str, Any], *names: str) -> None:
    missing = set(names) - row.keys()
    if missing:
        raise ValueError(f"has no {', '.join(sorted(missing))}")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def num_tokens(name: str, value: object) -> int:
    """A number of tokens, from JSON or from the text of a CSV field."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= 10:
        value = int(value)
    if isinstance(value, int) and is_count(value) and value < MOST_TOKENS:
        return value
    raise ValueError(f"{name}={value!r} is no integer ≥ 0 and below {MOST_TOKENS}")


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Ids of tokens, or of their hashes."""
    if not isinstance(value, list) or not all(map(is_count, value)):
        raise ValueError(f"{name} is no list of integers ≥ 0")
    return tuple(value)


def time(name: str, value: object, unit: str) -> float:
    """A time from JSON, in the file's unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} is no number of {unit}")
    if not abs(value) < MAX_NUMBER:  # nan is none either
        raise ValueError(f"{name}={value!r} is no number of {unit} below {MAX_NUMBER}")
    if value < 0:
        raise ValueError(f"{name}={value!r} is negative")
    return float(value)


def csv_time(name: str, text: str, unit: str) -> float:
    """A time from the text of a CSV field."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{name}={text!r} is no number of {unit}")
    return time(name, value, unit)
