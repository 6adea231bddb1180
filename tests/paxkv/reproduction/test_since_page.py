"""A page of comparisons, made of runs whose numbers are known."""

from dataclasses import replace

import pytest

from paxkv.reproduction.jobs import jobs_of
from paxkv.reproduction.since_page import Column, Section, page_text, result_of
from paxkv.reproduction.since_plots import draw_group
from tests.paxkv.reproduction.figures import make_figure, rows_of


def make_section(**changes):
    given = {
        "group": "Sizes",
        "figure": make_figure(),
        "rows": ("size",),
        "columns": (
            Column(name="value", ours=lambda found: found("value"), has_range=True),
            Column(name="mean", ours=lambda found: found("value"), digits=1),
            Column(name="over", ours=lambda found: found("value"), over_first=True),
        ),
        "finding": "Twice as large is {gain:.2f} times as much.",
        "numbers": {"gain": lambda found: found("value", size=2) / found("value", size=1)},
    }
    return Section(**(given | changes))


def rows(figure):
    """By key, as `running.read_rows` has them."""
    found = rows_of(figure)
    for row in found.values():
        row["metrics"]["costs"] = "assumed"
    return found


def test_values_are_size_plus_seed_and_ratios_are_taken_seed_by_seed():
    section = make_section()
    result = result_of(section, rows(section.figure), "full")
    assert result.cells == {
        (1,): ((1.0, 2.0), (1.0, 2.0), (1.0, 1.0)),
        (2,): ((2.0, 3.0), (2.0, 3.0), (2.0, 1.5)),
    }
    assert result.finding == "Twice as large is 1.75 times as much."  # of 2.0 and 1.5
    text = page_text([result], "# Page", {"Sizes": ["figures/sizes.png"]})
    assert "| 2 | 2.50 (2.00 to 3.00) | 2.5 | 1.75 |" in text
    assert "![Sizes](figures/sizes.png)" in text
    # the check's verdict, and what the planted fault gives
    assert "PASS: large: 2.5 (2 to 3), must be 2 to 2.5; with a planted fault" in text
    assert "twice: 4" in text


def test_missing_runs_are_dashes_with_their_reason_and_no_finding():
    section = make_section()
    found = rows(section.figure)
    for job in jobs_of(section.figure):
        if job.labels["size"] == 1:
            found[job.key] |= {"metrics": None, "unavailable": "no such trace"}
    result = result_of(section, found, "full")
    assert result.finding is None
    text = page_text([result], "", {})
    assert "Not all ran: no such trace" in text
    assert "| 1 | - | - | - |" in text
    assert "| 2 | 2.50 (2.00 to 3.00) | 2.5 | - |" in text  # no base to compare with


def test_nothing_is_drawn_without_a_drawn_column_or_its_runs(tmp_path):
    pytest.importorskip("matplotlib")
    section = make_section()
    path = tmp_path / "plot.png"
    assert not draw_group([result_of(section, rows(section.figure), "full")], path)
    drawn = replace(
        section, columns=tuple(replace(one, is_drawn=True) for one in section.columns[:1])
    )
    assert not draw_group([result_of(drawn, {}, "full")], path)
    assert draw_group([result_of(drawn, rows(section.figure), "full")], path)
    assert path.stat().st_size < 60_000
