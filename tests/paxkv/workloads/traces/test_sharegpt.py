import io
import json

import pytest

from paxkv.workloads.traces import sharegpt


def conversation(name, *texts):
    who = ("human", "gpt")
    turns = [{"from": who[i % 2], "value": text} for i, text in enumerate(texts)]
    return {"id": name, "conversations": turns}


FILE = [
    conversation("x", "a b", "c d e", "f", "g h"),
    conversation("y", "a", 'b [ ] { } " \\ \n'),
]


def read(text):
    told = []
    rows = sharegpt.rows(
        io.StringIO(text),
        lambda n, why: told.append((n, why)),
        lambda text: len(text.split()),  # tokens
    )
    return list(rows), told


def lengths(rows):
    return [(row.session, row.input_tokens, row.output_tokens) for _, row in rows]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("piece", [1, 7, 2**16])
def test_reads_conversations_in_pieces(monkeypatch, indent, piece):
    monkeypatch.setattr(sharegpt, "PIECE_CHARS", piece)
    rows, told = read("\n " + json.dumps(FILE, indent=indent))
    assert lengths(rows) == [("0 x", 2, 3), ("0 x", 1, 2), ("1 y", 1, 7)]
    assert all(row.arrival_s is None for _, row in rows)
    assert not told


def test_lines_are_those_where_conversations_begin():
    text = json.dumps([FILE[0], 3, FILE[1]], indent=1)
    where = text.splitlines().index(" 3,") + 1
    rows, told = read(text)
    assert [number for number, _ in rows] == [2, 2, where + 1]
    assert told == [(where, "is a int, not an object")]


def test_a_last_question_without_answer_is_no_request():
    rows, _ = read(json.dumps([conversation("x", "a", "b", "c")]))
    assert lengths(rows) == [("0 x", 1, 1)]


@pytest.mark.parametrize(
    ("element", "why"),
    [
        ({"id": "z"}, "has no conversation of at least two turns"),
        (conversation("z", "a"), "has no conversation of at least two turns"),
        ({"conversations": ["a", "b"]}, "has a turn that is a str"),
    ],
)
def test_conversations_without_answers_are_told(element, why):
    rows, told = read(json.dumps([element, FILE[1]]))
    assert len(rows) == 1
    assert told[0][1].startswith(why)


@pytest.mark.parametrize("end", ["", ",", ',{"id": ', ",{]"])
def test_a_broken_end_is_told_and_what_came_before_is_kept(end):
    rows, told = read(json.dumps(FILE)[:-1] + end)
    assert len(rows) == 3
    ((number, why),) = told
    assert number == 1 and why.endswith("what follows cannot be read")


def test_what_is_no_array_is_refused():
    with pytest.raises(ValueError, match="begins with 'x.*', not with the \\[ of an array"):
        read(" x [1]")
    with pytest.raises(ValueError, match="begins with ''"):
        read(" ")


def test_deep_nesting_is_told():
    rows, told = read("[" + "[" * 200_000)
    assert not rows and "nested too deeply" in told[0][1]


def test_a_long_conversation_is_read_in_a_time_that_grows_with_it():
    """Text that is not yet whole is tried again only when it has doubled."""
    text = "word " * 400_000
    rows, told = read(json.dumps([conversation("x", text, text)]))
    assert lengths(rows) == [("0 x", 400_000, 400_000)] and not told


def test_the_bracket_tells_the_format():
    assert sharegpt.matches(" [\n") and not sharegpt.matches('{"conversations": []}')
