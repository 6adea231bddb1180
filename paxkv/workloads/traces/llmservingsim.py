"""LLMServingSim's requests (https://github.com/casys-kaist/LLMServingSim): CSV or JSONL
with lengths, times in nanoseconds and, in some files, the tokens. Also CSV files with
`arrival_s`, `input_len` and `output_len`, which are the same with fewer columns.
"""

import json
from collections.abc import Iterator
from io import TextIOBase
from typing import Any

from paxkv.workloads.traces.lines import (
    csv_rows,
    csv_time,
    has_keys,
    header_fields,
    json_object,
    num_tokens,
    numbered_lines,
    require_keys,
    time,
    token_ids,
)
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

KEYS = ("input_toks", "output_toks", "arrival_time_ns")
SHORT_COLUMNS = ("input_len", "output_len", "arrival_s")
IDS = "input_tok_ids"


def matches(first_line: str) -> bool:
    header = set(header_fields(first_line))
    return (
        has_keys(first_line, *KEYS) or set(KEYS) <= header or set(SHORT_COLUMNS) <= header
    )


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """Lazily, as the file has them; outputs have the file's lengths, not its tokens."""
    first_line = file.readline(4096)
    file.seek(0)
    if first_line.lstrip().startswith("{"):
        yield from _json_rows(file, malformed)
        return
    is_short = set(SHORT_COLUMNS) <= set(header_fields(first_line))
    columns, per_second = (SHORT_COLUMNS, 1.0) if is_short else (KEYS, 1e9)
    unit = "seconds" if is_short else "nanoseconds"
    for number, values in csv_rows(file, columns, malformed, IDS):
        try:
            row = _row(
                dict(zip((*columns, IDS), values, strict=True)),
                columns,
                csv_time(columns[2], values[2], unit) / per_second,
            )
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, row


def _json_rows(file: TextIOBase, malformed: Malformed) -> Iterator[tuple[int, TraceRow]]:
    for number, line in numbered_lines(file, malformed):
        try:
            row = json_object(line)
            require_keys(row, *KEYS)
            arrival_s = time(KEYS[2], row[KEYS[2]], "nanoseconds") / 1e9
            parsed = _row(row, KEYS, arrival_s)
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, parsed


def _row(row: dict[str, Any], columns: tuple[str, ...], arrival_s: float) -> TraceRow:
    input_tokens = num_tokens(columns[0], row[columns[0]])
    ids = row.get(IDS) or []
    prompt_ids = token_ids(IDS, json.loads(ids) if isinstance(ids, str) else ids)
    if prompt_ids and len(prompt_ids) != input_tokens:
        raise ValueError(f"{IDS} has {len(prompt_ids)} ids, {columns[0]} is {input_tokens}")
    return TraceRow(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=num_tokens(columns[1], row[columns[1]]),
        prompt_ids=prompt_ids,
    )
