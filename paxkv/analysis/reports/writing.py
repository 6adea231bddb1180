"""Writes a report's figures and page into a folder."""

from collections.abc import Sequence
from pathlib import Path

from paxkv.analysis.reports.drawing import draw_figure
from paxkv.analysis.reports.page import page_text, write_page
from paxkv.analysis.reports.section import Section

PAGE = "report.html"


def write_report(
    folder: Path, title: str, sections: Sequence[Section], facts: Sequence[str] = ()
) -> str:
    """Writes `report.html`, and PNG and SVG of each figure; without matplotlib, a page of
    tables. What it wrote, in words.

    Raises:
      ResultsNotWritten: a file could not be written.
    """
    figures = [figure for section in sections for figure in section.figures]
    svgs: dict[str, str] = {}
    told = f"{len(figures)} figures are in {folder}, as PNG and SVG."
    try:
        for figure in figures:
            svgs[figure.name] = draw_figure(figure, folder)
    except ImportError as error:
        told = f"No figures: {error}"
        facts = [*facts, "No figures, for matplotlib is not installed."]
    write_page(folder / PAGE, page_text(title, sections, svgs, facts))
    return f"{told}\nThe page is {folder / PAGE}."
