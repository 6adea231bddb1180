"""The verdicts as text: a block per figure, a line per check."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paxkv.reproduction.figure import Band, Figure
from paxkv.reproduction.judging import Judged, Rejection
from paxkv.results import Row

HEAD = ("number", "paper", "ours", "band", "verdict", "sample", "its band rejects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A figure with its verdicts, and where they are from."""

    figure: Figure
    judged: tuple[Judged, ...]
    source: str  # "simulated", "measured on cpu" or "computed"
    costs: tuple[str, ...]  # where the times of simulated steps are from
    wall_s: float  # of all runs, one after the other
    revisions: tuple[str, ...]  # of the code that ran them
    rows: tuple[Row, ...]


def report_of(figure: Figure, judged: Sequence[Judged], rows: Sequence[Row]) -> Report:
    """`rows` are those of the figure's jobs."""
    ran = [row for row in rows if row["metrics"] is not None]
    wall_s = {row["key"]: row["wall_s"] for row in ran}
    sources = dict.fromkeys(
        f"measured on {row['device']}" if row["kind"] == "measured" else row["kind"]
        for row in ran
    )
    revisions = dict.fromkeys(
        f"{(row['git']['revision'] or 'no git')[:9]}{'+' if row['git']['dirty'] else ''}"
        for row in ran
    )
    return Report(
        figure=figure,
        judged=tuple(judged),
        source=", ".join(sources) or "nothing ran",
        costs=tuple(dict.fromkeys(filter(None, (r["metrics"].get("costs") for r in ran)))),
        wall_s=sum(wall_s.values()),
        revisions=tuple(revisions),
        rows=tuple(rows),
    )


def cells(one: Judged) -> tuple[str, ...]:
    """A line's cells, in the order of `HEAD`."""
    check = one.check
    paper = "-" if check.paper is None else number(check.paper, check.unit)
    return (
        check.name,
        paper,
        ours(one),
        band(check.band),
        one.verdict.value,
        f"{check.sample}-sample" if check.sample != "partly" else "partly in",
        "; ".join(rejection(each) for each in one.rejections) or "-",
    )


def table(reports: Sequence[Report]) -> str:
    """All figures under one head."""
    blocks = [[cells(one) for one in report.judged] for report in reports]
    lines = [HEAD, *(line for block in blocks for line in block)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD) - 1)]

    def text(line: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        return "  ".join([*padded, line[-1]]).rstrip()

    shown = [text(HEAD)]
    for report, block in zip(reports, blocks, strict=True):
        shown += ["", title(report), *map(text, block)]
        reasons = dict.fromkeys(one.why for one in report.judged if one.why)
        shown += [f"  ({why})" for why in reasons]
    return "\n".join(shown)


def title(report: Report) -> str:
    """Which figure, what was run, and what its numbers are."""
    figure = report.figure
    return f"{figure.row}, {figure.figure}: {figure.title} [{report.source}: {figure.ran}]"


def summary(reports: Sequence[Report]) -> str:
    """How many checks came to what."""
    verdicts = [one.verdict.value for report in reports for one in report.judged]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    missed = sum(
        not each.is_rejected
        for report in reports
        for one in report.judged
        for each in one.rejections
    )
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return told + (f"; {missed} planted policies were not rejected" if missed else "")


def number(value: float | int | str, unit: str = "") -> str:
    """Three or four digits, exact where it is an integer."""
    if isinstance(value, str):
        return value
    if math.isfinite(value) and value == int(value) and abs(value) < 1e9:
        shown = f"{int(value):,}"
    else:
        shown = f"{value:.4g}"
    return f"{shown}{'' if unit in ('', '%') else ' '}{unit}"


def ours(one: Judged) -> str:
    """The mean over seeds, and their range."""
    if not one.values:
        return "-"
    mean = number(one.mean, one.check.unit)
    low, high = min(one.values), max(one.values)
    return mean if low == high else f"{mean} ({number(low)} to {number(high)})"


def band(limits: Band | None) -> str:
    if limits is None:
        return "-"
    low, high = limits
    if low is not None and low == high:
        return f"= {number(low)}"
    if low is None:
        return "any" if high is None else f"≤ {number(high)}"
    return f"≥ {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def rejection(one: Rejection) -> str:
    said = f"{one.planted}: {number(one.value)}"
    if not one.is_rejected:
        return f"NOT {said}"
    return said if one.is_telling else f"{said} (without it, too)"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    shown = (head, ["---"] * len(head), *lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)
