import io

import pytest

from paxkv.workloads.traces import azure
from paxkv.workloads.traces.rows import TraceRow, approximate_tokens

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OF_2023 = HEADER + (
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
    "2023-11-17 00:00:00.0000001,110,27\n"
)
OF_2024 = HEADER + (
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:00.017335+00:00,2399,6\n"
    "2024-05-10 02:00:01+02:00,76,15\n"
)


def read(text):
    told = []
    rows = azure.rows(
        io.StringIO(text), lambda n, why: told.append((n, why)), approximate_tokens
    )
    return list(rows), told


def test_reads_the_trace_of_2023_with_seven_digits():
    rows, told = read(OF_2023)
    assert rows == [
        (2, TraceRow(arrival_s=0.0, input_tokens=4808, output_tokens=10)),
        (3, TraceRow(arrival_s=0.052, input_tokens=3180, output_tokens=8)),
        (4, TraceRow(arrival_s=20576.0200401, input_tokens=110, output_tokens=27)),
    ]
    assert not told


def test_reads_the_trace_of_2024_with_time_zones():
    rows, told = read(OF_2024)
    assert [row.arrival_s for _, row in rows] == [0.0, 0.007405, 0.99007]
    assert [row.input_tokens for _, row in rows] == [2162, 2399, 76]
    assert not told


def test_a_change_to_summer_time_or_a_new_year_is_no_gap():
    rows, _ = read(HEADER + "2023-12-31 23:59:59.5,1,1\n2024-01-01 00:00:00,1,1\n")
    assert rows[1][1].arrival_s == 0.5


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2023-11-16,1,1", "TIMESTAMP='2023-11-16' is no date and time"),
        ("2023-13-16 18:17:03,1,1", "is no date and time: month must be"),
        ("1700158623.98,1,1", "TIMESTAMP='1700158623.98' is no date"),
        ("2023-11-16 18:17:03,-1,1", "ContextTokens='-1' is no integer"),
        ("2023-11-16 18:17:03,1,", "GeneratedTokens='' is no integer"),
        ("2023-11-16 18:17:03,1", "has 2 fields, the header 3"),
        ("\x00\x01", "has 1 fields, the header 3"),
    ],
)
def test_malformed_rows_are_told_with_their_line(row, why):
    rows, told = read(HEADER + row + "\n2023-11-16 18:17:03,1,2\n")
    assert [(number, parsed.arrival_s) for number, parsed in rows] == [(3, 0.0)]
    assert [number for number, _ in told] == [2] and why in told[0][1]


def test_the_header_tells_the_format():
    assert azure.matches(HEADER)
    assert not azure.matches("Timestamp,Request tokens,Response tokens\n")
