"""Azure's LLM inference traces: CSV files with a time of day and two lengths.

Source: https://github.com/Azure/AzurePublicDataset (2023: Splitwise, ISCA 2024; 2024:
DynamoLLM, arXiv 2408.00741). The times of 2024 carry a time zone, those of 2023 have seven
digits after the point.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from io import TextIOBase

from paxkv.workloads.traces.lines import csv_rows, header_fields, num_tokens
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)


def matches(first_line: str) -> bool:
    return set(COLUMNS) <= set(header_fields(first_line))


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """Arrivals count from the first row, exact to the nanosecond."""
    first_ns: int | None = None
    for number, (timestamp, context, generated, _) in csv_rows(file, COLUMNS, malformed):
        try:
            time_ns = _nanoseconds(timestamp)
            input_tokens = num_tokens("ContextTokens", context)
            output_tokens = num_tokens("GeneratedTokens", generated)
        except ValueError as error:
            malformed(number, str(error))
            continue
        first_ns = time_ns if first_ns is None else first_ns
        yield (
            number,
            TraceRow(
                arrival_s=(time_ns - first_ns) / 1e9,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            ),
        )


def _nanoseconds(timestamp: str) -> int:
    """Since 1970; a time without a zone counts as UTC."""
    match = _TIMESTAMP.fullmatch(timestamp)
    if match is None:
        raise ValueError(f"TIMESTAMP={timestamp!r} is no date and time")
    date, clock, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{clock}{zone or ''}")
    except ValueError as error:
        raise ValueError(f"TIMESTAMP={timestamp!r} is no date and time: {error}") from None
    if whole.tzinfo is None:
        whole = whole.replace(tzinfo=UTC)
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return seconds * 10**9 + int((fraction or "").ljust(9, "0"))
