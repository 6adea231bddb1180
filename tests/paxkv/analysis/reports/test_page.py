"""One page, without network, whatever the texts in the rows."""

import re
from html.parser import HTMLParser

import pytest

from paxkv.analysis.reports.charts import BarChart, Figure, LineChart, Series
from paxkv.analysis.reports.page import page_text
from paxkv.analysis.reports.section import Section
from paxkv.analysis.reports.tables import Table
from paxkv.analysis.reports.writing import write_report
from paxkv.results import ResultsNotWritten

EVIL = '<script>alert("x")</script> & <b>'


def section(title="Runs", figures=()):
    table = Table(title=EVIL, head=("run", EVIL), lines=((EVIL, "1"),))
    return Section(
        title=title, notes=(EVIL,), tables=(table,), figures=tuple(figures), closing=(EVIL,)
    )


def figure(name="f"):
    line = LineChart(
        title=EVIL,
        x_label="x (s)",
        y_label="y (s)",
        series=(
            Series(label="a", x=(1.0, 2.0), y=(1.0, 2.0), half_widths=(None, 0.5)),
            Series(label="b", x=(1.0, 2.0), y=(1.0, 2.0), half_widths=(None, None)),
        ),
        has_log_y=True,
    )
    bars = BarChart(
        title="bars",
        x_label="%",
        labels=("a", "b"),
        parts={"one": (1.0, 2.0), "two": (3.0, 0.0)},
        half_widths=(None, None),
    )
    return Figure(name=name, charts=(line, bars), caption="simulated on a chip")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]


def tags(page):
    parser = Tags()
    parser.feed(page)
    return parser


def test_texts_are_escaped():
    page = page_text(EVIL, [section(EVIL), section()], {}, [EVIL])
    assert "script" not in tags(page).seen and "b" not in tags(page).seen
    assert page.count("&lt;script&gt;") == 2 * 5 + 5
    assert tags(page).links == ["#section-0", "#section-1"]


def test_figures_are_part_of_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    told = write_report(tmp_path, "Report", [section(figures=[figure()])])
    assert "1 figures" in told and sorted(p.name for p in tmp_path.iterdir()) == [
        "f.png",
        "f.svg",
        "report.html",
    ]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<svg" in page and "http" not in page and "@import" not in page
    assert not [link for link in tags(page).links if not link.startswith("#")]
    assert not re.search(r"url\((?!#)", page)
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "f.svg").read_text("utf-8").lstrip().startswith("<?xml")
    # equal reports are equal files
    write_report(tmp_path, "Report", [section(figures=[figure()])])
    assert (tmp_path / "report.html").read_text("utf-8") == page


def test_a_page_without_matplotlib_has_its_tables(tmp_path, monkeypatch):
    from paxkv.analysis.reports import writing

    def none(*arguments):
        raise ImportError("it needs matplotlib")

    monkeypatch.setattr(writing, "draw_figure", none)
    told = write_report(tmp_path, "Report", [section(figures=[figure()])])
    assert told.startswith("No figures: it needs matplotlib")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "matplotlib is not installed" in page and "<table" in page


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ResultsNotWritten):
        write_report(tmp_path / "no", "Report", [section()])
