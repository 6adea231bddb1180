import io
import json

import pytest

from paxkv.workloads.traces import lines


class Told(list):
    def __call__(self, number, why):
        self.append(f"line {number}: {why}")


def test_lines_are_numbered():
    told = Told()
    file = io.StringIO("a\n\nb")
    assert list(lines.numbered_lines(file, told)) == [(1, "a\n"), (2, "\n"), (3, "b")]
    assert not told


def test_a_line_without_end_is_passed_over(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_CHARS", 8)
    told = Told()
    file = io.StringIO("short\n" + "x" * 30 + "\nnext\n1234567\n")
    assert list(lines.numbered_lines(file, told)) == [
        (1, "short\n"),
        (3, "next\n"),
        (4, "1234567\n"),
    ]
    assert told == ["line 2: is longer than 8 characters"]


def test_columns_are_found_by_name():
    told = Told()
    file = io.StringIO('b, extra ,a\n1,x,2\n"3, 4",y,5\n1,2\n\n6,z,7\n')
    rows = list(lines.csv_rows(file, ("a", "b"), told, "extra"))
    assert rows == [(2, ["2", "1", "x"]), (3, ["5", "3, 4", "y"]), (6, ["7", "6", "z"])]
    assert told == [
        "line 4: has 2 fields, the header 3",
        "line 5: has 0 fields, the header 3",
    ]


def test_an_absent_optional_column_is_empty():
    assert list(lines.csv_rows(io.StringIO("a\n1\n"), ("a",), Told(), "b")) == [
        (2, ["1", ""])
    ]


def test_a_header_without_a_column_is_named():
    with pytest.raises(ValueError, match="no column c; it has a, b"):
        list(lines.csv_rows(io.StringIO("a,b\n1,2\n"), ("a", "c"), Told()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting"),
        ("[1]", "is a list, not an object"),
        ("[" * 100_000, "is nested too deeply"),
        ("9" * 5_000, "limit"),
    ],
)
def test_a_line_that_is_no_object(line, why):
    with pytest.raises(ValueError, match=why):
        lines.json_object(line)
    assert not lines.has_keys(line)


def test_keys():
    assert lines.has_keys('{"a": 1, "b": 2}', "a", "b")
    assert not lines.has_keys('{"a": 1}', "a", "b")
    with pytest.raises(ValueError, match="has no b, c"):
        lines.require_keys({"a": 1}, "c", "a", "b")


@pytest.mark.parametrize("value", [0, 7, "7", "0012", 2**31 - 1])
def test_numbers_of_tokens(value):
    assert lines.num_tokens("n", value) == int(value)


@pytest.mark.parametrize(
    "value",
    [-1, 1.0, True, None, "", "-1", "1.5", "1e3", "nan", " 7", 2**31, "9" * 5_000, [1]],
)
def test_what_is_no_number_of_tokens(value):
    with pytest.raises(ValueError, match="is no integer ≥ 0 and below"):
        lines.num_tokens("n", value)


def test_token_ids():
    assert lines.token_ids("ids", [0, 5]) == (0, 5)
    for value in ([1, -1], [True], "12", None, [1.0]):
        with pytest.raises(ValueError, match="ids is no list of integers ≥ 0"):
            lines.token_ids("ids", value)


def test_times():
    assert lines.time("t", 3, "seconds") == 3.0
    assert lines.csv_time("t", "2.5", "seconds") == 2.5
    for value in ("0", True, None, float("nan"), 10**400, float("inf")):
        with pytest.raises(ValueError, match="is no number of seconds"):
            lines.time("t", value, "seconds")
    for text in ("", "x", "nan", "inf", "1e300"):
        with pytest.raises(ValueError, match="is no number of seconds"):
            lines.csv_time("t", text, "seconds")
    with pytest.raises(ValueError, match="t=-1 is negative"):
        lines.time("t", -1, "seconds")


def test_a_time_that_json_cannot_hold_is_refused():
    row = json.loads('{"t": NaN}')
    with pytest.raises(ValueError, match="t=nan"):
        lines.time("t", row["t"], "seconds")
