"""Figures are drawn with names at the ends of lines, which do not touch."""

import math

import pytest

pytest.importorskip("matplotlib")

from paxkv.analysis.reports.charts import BarChart, Figure, LineChart, Series
from paxkv.analysis.reports.drawing import LABEL_GAP, _drawn, draw_figure


def lines(count, **more):
    return LineChart(
        title="t",
        x_label="rate (requests/s)",
        y_label="latency (s)",
        series=tuple(
            Series(label=f"line {i}", x=(1.0, 2.0), y=(1.0, 1.0), half_widths=(None, 0.1))
            for i in range(count)
        ),
        **more,
    )


def canvas_of(*charts):
    return _drawn(Figure(name="f", charts=charts, caption="simulated on a chip"))


def test_axes_have_labels_and_lines_their_names():
    [axes] = canvas_of(lines(5)).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rate (requests/s)", "latency (s)")
    heights = sorted(
        note.xyann[1] for note in axes.texts if note.get_text().startswith("line ")
    )
    assert len(heights) == 5
    gaps = [b - a for a, b in zip(heights, heights[1:], strict=False)]
    assert min(gaps) >= LABEL_GAP - 1e-9
    drawn = [line for line in axes.lines if line.get_marker() not in ("None", "_")]
    styles = {(line.get_color(), line.get_marker()) for line in drawn}
    assert len(styles) == 5


def test_logarithms_and_levels():
    chart = lines(1, x_base=2, has_log_y=True, y_line=(0.5, "limit"))
    [axes] = canvas_of(chart).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]
    assert any(note.get_text() == "limit" for note in axes.texts)


@pytest.mark.parametrize("base", [2, 10])
def test_a_logarithmic_axis_has_the_numbers_that_were_run(base):
    series = Series(label="", x=(2001.0, 6001.0), y=(1.0, 2.0), half_widths=(None, None))
    chart = LineChart(title="t", x_label="x", y_label="y", series=(series,), x_base=base)
    [axes] = canvas_of(chart).axes
    labels = [tick.get_text() for tick in axes.get_xticklabels(which="both")]
    assert labels == ["2,001", "6,001"]
    assert not axes.texts  # a line without a name has none at its end


def test_many_lines_over_time_are_drawn_apart():
    assert len(canvas_of(lines(4, has_steps=True)).axes) == 1
    assert len(canvas_of(lines(5, has_steps=True)).axes) == 5


def test_bars_carry_their_numbers():
    chart = BarChart(
        title="t",
        x_label="preemptions",
        labels=("a", "b"),
        parts={"preemptions": (1012.0, math.nan)},
        half_widths=(3.0, None),
    )
    [axes] = canvas_of(chart).axes
    assert [note.get_text() for note in axes.texts] == ["1,012", "0"]
    stacked = BarChart(
        title="t",
        x_label="%",
        labels=("a",),
        parts={"one": (97.0,), "two": (3.0,)},
        half_widths=(None,),
        x_max=100.0,
    )
    [axes] = canvas_of(stacked).axes
    assert [note.get_text() for note in axes.texts] == ["97"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]


def test_files_and_svg(tmp_path):
    figure = Figure(name="f", charts=(lines(2),), caption="c")
    svg = draw_figure(figure, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.png", "f.svg"]
    assert 'xmlns="http' in (tmp_path / "f.svg").read_text("utf-8")  # a file needs it
    assert svg.startswith("<svg") and svg.endswith("</svg>") and "http" not in svg
