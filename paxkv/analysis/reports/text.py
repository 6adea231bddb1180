"""The report as text, for a terminal."""

import textwrap
from collections.abc import Sequence

from paxkv.analysis.reports.section import Section
from paxkv.analysis.reports.tables import MAX_WIDTH, table_text


def report_text(sections: Sequence[Section]) -> str:
    """Titles, notes, tables and closing sentences, in lines of at most 100 characters."""
    return "\n\n".join(_section_text(section) for section in sections)


def paragraph(text: str) -> str:
    """The text in lines that fit."""
    return textwrap.fill(text, MAX_WIDTH, subsequent_indent="  ")


def _section_text(section: Section) -> str:
    title = paragraph(section.title)
    rule = "=" * max(len(line) for line in title.splitlines())
    parts = [f"{title}\n{rule}"]
    if section.notes:
        parts.append("\n".join(paragraph(note) for note in section.notes))
    parts += [table_text(table) for table in section.tables]
    if section.closing:
        parts.append("\n".join(paragraph(sentence) for sentence in section.closing))
    return "\n\n".join(parts)
