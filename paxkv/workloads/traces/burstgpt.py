"""BurstGPT: a CSV file of two services over months.

Source: https://github.com/HPMLL/BurstGPT (Wang et al., KDD 2025). Times are in seconds from
the first midnight. A failed request has no response tokens; the files "without fails" lack
these. Rows of one conversation have the same Session ID in release 2; each has a time of
its own, so each is a request of its own here.
"""

from collections.abc import Iterator
from io import TextIOBase

from paxkv.workloads.traces.lines import csv_rows, csv_time, header_fields, num_tokens
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def matches(first_line: str) -> bool:
    return set(COLUMNS) <= set(header_fields(first_line))


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """Lazily, as the file has them."""
    for number, (timestamp, request, response, session) in csv_rows(
        file, COLUMNS, malformed, SESSION
    ):
        try:
            row = TraceRow(
                arrival_s=csv_time("Timestamp", timestamp, "seconds"),
                input_tokens=num_tokens("Request tokens", request),
                output_tokens=num_tokens("Response tokens", response),
                session=session or None,
            )
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, row
