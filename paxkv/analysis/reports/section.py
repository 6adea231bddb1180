"""A part of a report: runs that can be compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from paxkv.analysis.reports.charts import Figure
from paxkv.analysis.reports.estimates import METHOD
from paxkv.analysis.reports.settings import Point
from paxkv.analysis.reports.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What is said of them, from the first line to the last."""

    title: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    closing: tuple[str, ...] = ()


def seeds_note(points: Sequence[Point]) -> str:
    """What the numbers are of."""
    counts = sorted({len(point.rows) for point in points})
    if counts == [1]:
        return "One seed of each setting (n = 1), so no interval is shown."
    note = f"Values are the {METHOD}; n seeds"
    return f"{note}. With n = 1 there is no interval." if 1 in counts else f"{note}."
