import io
import json

import pytest

from paxkv.workloads.traces import mooncake
from paxkv.workloads.traces.rows import TraceRow, approximate_tokens

LINE = {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
BAILIAN = LINE | {"timestamp": 61.5, "chat_id": 159, "parent_chat_id": -1, "turn": 1}


def read(reader, *lines):
    told = []
    text = "".join(
        (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines
    )
    rows = reader(
        io.StringIO(text), lambda n, why: told.append((n, why)), approximate_tokens
    )
    return list(rows), told


def test_reads_milliseconds_and_blocks_of_512():
    rows, told = read(mooncake.rows, LINE, LINE | {"hash_ids": []})
    expected = TraceRow(
        arrival_s=1.5,
        input_tokens=600,
        output_tokens=5,
        hash_ids=(0, 1),
        hash_block_tokens=512,
    )
    assert rows[0] == (1, expected)
    assert rows[1][1].hash_ids == ()
    assert not told


def test_reads_bailians_seconds_and_blocks_of_16():
    (row,), told = read(mooncake.bailian_rows, BAILIAN)
    assert row == (
        1,
        TraceRow(
            arrival_s=61.5,
            input_tokens=600,
            output_tokens=5,
            hash_ids=(0, 1),
            hash_block_tokens=16,
            session="159",
        ),
    )
    assert not told


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "Expecting value"),
        ('{"timestamp": 0}', "has no hash_ids, input_length, output_length"),
        (LINE | {"hash_ids": [-1]}, "hash_ids is no list of integers ≥ 0"),
        (LINE | {"timestamp": -1}, "timestamp=-1 is negative"),
        (LINE | {"input_length": 2**40}, "input_length=1099511627776 is no integer"),
    ],
)
def test_malformed_lines_are_told(line, why):
    rows, told = read(mooncake.rows, LINE, line, LINE)
    assert [number for number, _ in rows] == [1, 3]
    assert [number for number, _ in told] == [2] and told[0][1].startswith(why)


def test_the_keys_tell_the_format():
    assert mooncake.matches(json.dumps(LINE))
    assert not mooncake.bailian_matches(json.dumps(LINE))
    assert mooncake.bailian_matches(json.dumps(BAILIAN))
    assert not mooncake.matches(json.dumps(BAILIAN))
