import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paxkv.workloads.traces import reading
from paxkv.workloads.traces.formats import FORMATS
from paxkv.workloads.traces.reading import TooManyMalformed, TraceReader, TraceReport

HEADER = "arrival_s,input_len,output_len\n"


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def times(reader):
    return [row.arrival_s for row in reader]


def test_times_count_from_the_first_row_and_a_reader_reads_again(tmp_path):
    reader = TraceReader(write(tmp_path / "t.csv", HEADER + "5,1,2\n5,3,4\n7.5,5,6\n"))
    assert reader.trace_format == "llmservingsim"
    assert reader.report == TraceReport()
    for _ in range(2):
        assert times(reader) == [0.0, 0.0, 2.5]
        assert reader.report == TraceReport(num_rows=3)


def test_rows_out_of_order_are_malformed(tmp_path):
    path = write(tmp_path / "t.csv", HEADER + "5,1,1\n3,1,2\n6,1,3\n5.5,1,4\n")
    reader = TraceReader(path)
    assert times(reader) == [0.0, 1.0]
    assert reader.report.num_malformed == 2
    assert reader.report.malformed[0].startswith(
        "line 3: arrives at 3.0 s, before the row above it at 5.0 s; set sort_trace"
    )
    assert reader.report.malformed[1].startswith("line 5: arrives at 5.5 s")


def test_rows_are_sorted_where_asked_for(tmp_path):
    path = write(tmp_path / "t.csv", HEADER + "5,1,1\n3,1,2\n6,1,3\n5,1,4\n")
    reader = TraceReader(path, sort=True)
    assert [(row.arrival_s, row.output_tokens) for row in reader] == [
        (0.0, 2),
        (2.0, 1),
        (2.0, 4),
        (3.0, 3),
    ]
    assert reader.report == TraceReport(num_rows=4)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("1,0,5", "input_tokens=0; a request has at least 1"),
        ("1,5,0", "output_tokens=0; a request has at least 1"),
        ("1e11,5,5", "arrives at 100000000000.0 s; times up to 1e+10 s are possible"),
        ("nan,5,5", "arrival_s='nan' is no number"),
        ("1,5", "has 2 fields, the header 3"),
        ("", "has 0 fields, the header 3"),
    ],
)
def test_rows_that_ask_for_nothing_are_malformed(tmp_path, row, why):
    reader = TraceReader(write(tmp_path / "t.csv", HEADER + f"0,1,1\n{row}\n2,1,1\n"))
    assert times(reader) == [0.0, 2.0]
    (told,) = reader.report.malformed
    assert told.startswith(f"line 3: {why}")


def test_too_many_malformed_rows_are_an_error(tmp_path):
    path = write(tmp_path / "t.csv", HEADER + "0,1,1\nx,1,1\n1,1,1\ny,1,1\n2,1,1\n")
    assert len(list(TraceReader(path, max_malformed=2))) == 3
    reader = TraceReader(path, max_malformed=1)
    rows = iter(reader)
    assert len(list(islice(rows, 2))) == 2
    with pytest.raises(TooManyMalformed) as error:
        next(rows)
    assert "more than 1 malformed rows: line 3: arrival_s='x'" in str(error.value)
    assert "line 5: arrival_s='y'" in str(error.value)
    assert "--config.workload.max_malformed" in str(error.value)


def test_all_malformed_rows_are_counted_and_the_first_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_SHOWN", 3)
    path = write(tmp_path / "t.csv", HEADER + "x,1,1\n" * 10 + "1,1,1\n")
    reader = TraceReader(path)
    list(reader)
    assert reader.report.num_malformed == 10
    assert [text[:7] for text in reader.report.malformed] == [
        "line 2:",
        "line 3:",
        "line 4:",
    ]


def test_reading_is_lazy(tmp_path):
    """What stands further down is not yet looked at."""
    path = write(tmp_path / "t.csv", HEADER + "0,1,1\n1,1,1\n" + "junk\n" * 100)
    reader = TraceReader(path, max_malformed=0)
    assert len(list(islice(reader, 2))) == 2
    assert reader.report == TraceReport(num_rows=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; it needs a request"),
        ("\n", "has no known format; its first line begins '\\n'"),
        (bytes(range(128, 144)) + b"\x00\xff\xfe", "has no known format"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "has no known format; its first line begins"),
        ("a,b\n1,2\n", "Name one of azure, mooncake"),
    ],
)
def test_files_that_are_no_trace(tmp_path, text, message):
    with pytest.raises(ValueError) as error:
        TraceReader(write(tmp_path / "t.csv", text))
    assert message in str(error.value) and "t.csv" in str(error.value)


def test_a_missing_file_says_where_traces_are(tmp_path):
    with pytest.raises(ValueError, match="No such file.*configs/workloads say where"):
        TraceReader(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        TraceReader(tmp_path)


def test_an_unknown_format_is_named(tmp_path):
    path = write(tmp_path / "t.csv", HEADER)
    with pytest.raises(ValueError, match="trace_format='parquet' is none of auto, azure"):
        TraceReader(path, trace_format="parquet")


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("junk", [b"\x00\xff\n\x80\n", b"a,b,c\n1,2,3\n", b"{}\n[]\n"])
def test_a_file_of_another_format_is_an_error(tmp_path, name, junk):
    reader = TraceReader(write(tmp_path / "t", junk), trace_format=name)
    with pytest.raises(ValueError, match="t' (is not of format|has no request of format)"):
        list(reader)


def test_a_header_alone_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no request of format 'llmservingsim': 0"):
        list(TraceReader(write(tmp_path / "t.csv", HEADER)))


def test_a_mark_of_byte_order_is_no_part_of_the_header(tmp_path):
    reader = TraceReader(
        write(tmp_path / "t.csv", b"\xef\xbb\xbf" + HEADER.encode() + b"0,1,1\n")
    )
    assert len(list(reader)) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "timestamp",
                    "input_length",
                    "output_length",
                    "hash_ids",
                    "chat_id",
                    "prompt",
                ]
                + ["output_tokens", "conversations", "value", "input_toks", "output_toks"]
                + [
                    "arrival_time_ns",
                    "arrival_s",
                    "turns",
                    "prompt_ids",
                    "max_tokens",
                    "options",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(lines=st.lists(JSON, min_size=1, max_size=3), name=st.sampled_from(list(FORMATS)))
def test_any_json_is_a_row_or_is_told(tmp_path_factory, lines, name):
    path = tmp_path_factory.mktemp("any") / "t"
    if name == "sharegpt":
        path.write_text(json.dumps(lines))
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reader = TraceReader(path, trace_format=name)
    try:
        rows = list(reader)
    except ValueError as error:
        assert "is not of format" in str(error) or "has no request" in str(error)
    else:
        assert rows
    if name not in ("azure", "burstgpt", "llmservingsim", "sharegpt"):
        assert reader.report.num_rows + reader.report.num_malformed == len(lines)
