import io

from paxkv.workloads.traces import burstgpt
from paxkv.workloads.traces.rows import TraceRow, approximate_tokens

OF_RELEASE_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
1106,ChatGPT,0,0,0,Conversation log
"""
HEADER_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
    "Log Type\n"
)


def read(text):
    told = []
    rows = burstgpt.rows(
        io.StringIO(text), lambda n, why: told.append((n, why)), approximate_tokens
    )
    return list(rows), told


def test_reads_release_1():
    rows, told = read(OF_RELEASE_1)
    assert rows == [
        (2, TraceRow(arrival_s=5.0, input_tokens=472, output_tokens=18)),
        (3, TraceRow(arrival_s=45.0, input_tokens=1087, output_tokens=230)),
        (4, TraceRow(arrival_s=1106.0, input_tokens=0, output_tokens=0)),
    ]
    assert not told


def test_reads_the_sessions_of_release_2():
    rows, told = read(
        HEADER_2
        + "5.25,17,3.5,ChatGPT,472,18,490,Conversation log\n6,,1.0,GPT-4,8,9,17,API log\n"
    )
    assert [row.session for _, row in rows] == ["17", None]
    assert rows[0][1].arrival_s == 5.25 and rows[0][1].output_tokens == 18
    assert not told


def test_malformed_rows_are_told_with_their_line():
    rows, told = read(
        OF_RELEASE_1 + "x,ChatGPT,1,1,2,log\n-3,ChatGPT,1,1,2,log\n7,ChatGPT,1.0,1,2,log\n"
    )
    assert len(rows) == 3
    assert told == [
        (5, "Timestamp='x' is no number of seconds"),
        (6, "Timestamp=-3.0 is negative"),
        (7, "Request tokens='1.0' is no integer ≥ 0 and below 2147483648"),
    ]


def test_the_header_tells_the_format():
    assert burstgpt.matches(HEADER_2) and burstgpt.matches(OF_RELEASE_1.splitlines()[0])
    assert not burstgpt.matches("TIMESTAMP,ContextTokens,GeneratedTokens\n")
