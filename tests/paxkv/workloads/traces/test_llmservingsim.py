import io
import json

import pytest

from paxkv.workloads.traces import llmservingsim
from paxkv.workloads.traces.rows import TraceRow, approximate_tokens

LINE = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 1_500_000_000}
IDS = {"input_tok_ids": [7, 8, 9], "output_tok_ids": [1, 2]}
FULL = "input_toks,output_toks,arrival_time_ns,input_tok_ids,output_tok_ids\n"
SHORT = "arrival_s,input_len,output_len\n"


def read(text):
    told = []
    rows = llmservingsim.rows(
        io.StringIO(text), lambda n, why: told.append((n, why)), approximate_tokens
    )
    return list(rows), told


def row(prompt_ids=()):
    return TraceRow(arrival_s=1.5, input_tokens=3, output_tokens=2, prompt_ids=prompt_ids)


def test_reads_lines_of_json_with_and_without_ids():
    rows, told = read(f"{json.dumps(LINE | IDS)}\n{json.dumps(LINE)}\n")
    assert rows == [(1, row((7, 8, 9))), (2, row())]
    assert not told


def test_reads_both_kinds_of_csv():
    rows, told = read(FULL + '3,2,1500000000,"[7, 8, 9]","[1, 2]"\n3,2,1500000000,,\n')
    assert rows == [(2, row((7, 8, 9))), (3, row())]
    assert read(SHORT + "1.5,3,2\n") == ([(2, row())], [])
    assert not told


@pytest.mark.parametrize(
    ("text", "number", "why"),
    [
        (json.dumps(LINE | {"input_tok_ids": [1]}), 1, "input_tok_ids has 1 ids, input_t"),
        (
            json.dumps(LINE | {"arrival_time_ns": "0"}),
            1,
            "arrival_time_ns='0' is no number",
        ),
        (json.dumps({"input_toks": 3}), 1, "has no arrival_time_ns, output_toks"),
        (FULL + '3,2,1,"[7, 8",\n', 2, "Expecting ',' delimiter"),
        (SHORT + "1.5,-3,2\n", 2, "input_len='-3' is no integer"),
        (SHORT + "nan,3,2\n", 2, "arrival_s='nan' is no number of seconds"),
    ],
)
def test_malformed_rows_are_told_with_their_line(text, number, why):
    if number == 1:  # of JSON, whose first line tells the format
        text = json.dumps(LINE) + "\n" + text
    rows, told = read(text)
    assert len(rows) == 2 - number
    ((line, reason),) = told
    assert line == 2 and reason.startswith(why)


def test_the_first_line_tells_the_format():
    for first_line in (FULL, SHORT, json.dumps(LINE)):
        assert llmservingsim.matches(first_line)
    assert not llmservingsim.matches("TIMESTAMP,ContextTokens,GeneratedTokens\n")
