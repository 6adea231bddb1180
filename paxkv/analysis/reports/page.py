"""The report as one HTML page that needs no network: its figures are part of it."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from paxkv.analysis.reports.section import Section
from paxkv.analysis.reports.tables import Table
from paxkv.results import explained

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem;
  border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; font-size: 0.87rem; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #e3e3e3;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0 2rem; } figure svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; } .note { color: #444; }
.closing { border-left: 4px solid #0072B2; padding-left: 1rem; }
""".strip()


def page_text(
    title: str,
    sections: Sequence[Section],
    figures: Mapping[str, str],
    facts: Sequence[str] = (),
) -> str:
    """The whole page.

    Args:
      figures: `<svg>` elements by the names of the sections' figures; others are left out.
      facts: of the whole report, as where its rows are from.
    """
    body = [f"<h1>{escape(title)}</h1>", *(_note(fact) for fact in facts)]
    if len(sections) > 1:
        links = (
            f'<li><a href="#section-{index}">{escape(section.title)}</a></li>'
            for index, section in enumerate(sections)
        )
        body.append(f"<ul>{''.join(links)}</ul>")
    for index, section in enumerate(sections):
        body += [f'<h2 id="section-{index}">{escape(section.title)}</h2>']
        body += [_note(note) for note in section.notes]
        for figure in section.figures:
            if figure.name in figures:
                alt = escape("; ".join(chart.title for chart in figure.charts))
                body.append(
                    f'<figure role="img" aria-label="{alt}">{figures[figure.name]}</figure>'
                )
        body += [_table(table) for table in section.tables]
        if section.closing:
            sentences = "".join(f"<p>{escape(text)}</p>" for text in section.closing)
            body.append(f'<div class="closing">{sentences}</div>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Writes the page.

    Raises:
      ResultsNotWritten: the file could not be written.
    """
    with explained(path):
        path.write_text(text, encoding="utf-8")


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>\n"
        for line in table.lines
    )
    return (
        f'<div class="table"><table><caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>"
    )
