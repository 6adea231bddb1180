"""Tables are aligned and fit."""

import pytest

from paxkv.analysis.reports.tables import Table, table_text


def test_labels_left_numbers_right():
    table = Table(
        title="T", head=("run", "n", "s"), lines=(("a", "1", "0.5"), ("bc", "10", "-"))
    )
    assert table_text(table) == (
        "T\nrun   n    s\n------------\na     1  0.5\nbc   10    -"
    )


def test_columns_that_do_not_fit_follow_below():
    head = ("run", *(f"column {i:02}" for i in range(20)))
    table = Table(title="T", head=head, lines=(("x" * 80, *["1"] * 20),))
    text = table_text(table)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert all(text.count(name) == 1 for name in head[1:])
    assert "…" in text


def test_a_line_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"has 2 columns, but lines of \[1\] cells"):
        Table(title="T", head=("a", "b"), lines=(("1",),))
