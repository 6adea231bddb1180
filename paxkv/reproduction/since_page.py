"""A page of comparisons: sections with a table of rows, what they show, and checks.

Unlike a reproduced figure, a section has no paper's numbers: its rows are labels of the
figure's axes, its columns are read off each row's runs, and its finding is a text whose
numbers are filled in from them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paxkv.reproduction.figure import Figure
from paxkv.reproduction.found import Found, NotRun
from paxkv.reproduction.jobs import jobs_of
from paxkv.reproduction.judging import Judged, found_of, judge
from paxkv.reproduction.table import band, markdown, ours, rejection
from paxkv.results import Row, versions
from paxkv.sweeps.grid import flat

NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of each row."""

    name: str  # with its unit
    ours: Callable[[Found], float]  # of a row's runs of one seed
    digits: int = 2
    over_first: bool = False  # shown over the number of the first row
    has_range: bool = False  # over seeds, beside the mean
    is_drawn: bool = False  # over the number of the first row


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A figure as a table."""

    group: str  # sections of one group follow each other
    figure: Figure
    rows: tuple[str, ...]  # axes whose labels make a row each
    columns: tuple[Column, ...]
    finding: str  # with {names} of `numbers`, with format codes
    numbers: Mapping[str, Callable[[Found], float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A section with what its runs gave."""

    section: Section
    cells: Mapping[tuple[Any, ...], tuple[tuple[float, ...], ...]]  # row → column → seeds
    judged: tuple[Judged, ...]
    finding: str | None  # None: runs are missing
    missing: str | None  # why runs have no result, of the first
    costs: tuple[str, ...]
    wall_s: float


def result_of(section: Section, rows: Mapping[str, Row], mode: str) -> Result:
    """What the rows hold of a section, whose figure is as `as_mode` has it.

    Args:
      rows: by key of the figure's jobs; those that did not run may lack.
    """
    figure = section.figure
    jobs = jobs_of(figure)
    ran = [rows[job.key] for job in jobs if job.key in rows]
    said = [row["unavailable"] or row["error"] for row in ran]
    right = [j for j in jobs if j.planted is None and j.profile == figure.profiles[0]]
    by_seed = [
        found_of([job for job in right if job.seed == seed], rows) for seed in figure.seeds
    ]
    grid = flat(figure.grid)
    labels = list(itertools.product(*(grid[axis] for axis in section.rows)))
    plain = {
        row: tuple(
            _values(
                column.ours, [_restricted(found, section.rows, row) for found in by_seed]
            )
            for column in section.columns
        )
        for row in labels
    }
    first = plain[labels[0]]
    cells = {
        row: tuple(
            _over(values, base) if column.over_first else values
            for column, values, base in zip(section.columns, entries, first, strict=True)
        )
        for row, entries in plain.items()
    }
    done = [row["metrics"] for row in ran if row["metrics"] is not None]
    return Result(
        section=section,
        cells=cells,
        judged=tuple(judge(figure, jobs, rows, mode)),
        finding=_finding(section, by_seed),
        missing=next(filter(None, said), None),
        costs=tuple(dict.fromkeys(metrics["costs"] for metrics in done)),
        wall_s=sum((row["wall_s"] for row in ran), 0.0),
    )


def page_text(
    results: Sequence[Result], introduction: str, plots: Mapping[str, Sequence[str]]
) -> str:
    """All of it in Markdown; `plots` are files beside the page, by group."""
    parts = [introduction, _origin(results)]
    for group, some in itertools.groupby(results, lambda result: result.section.group):
        parts.append(f"## {group}\n")
        parts += [f"![{group}]({name})\n" for name in plots.get(group, ())]
        parts += [_section_text(result) for result in some]
    return "\n".join(parts)


def shown(values: Sequence[float], column: Column) -> str:
    """The mean over seeds, and where the column has it their range."""
    if not values:
        return NONE
    mean, low, high = (
        f"{value:,.{column.digits}f}"
        for value in (sum(values) / len(values), min(values), max(values))
    )
    return f"{mean} ({low} to {high})" if column.has_range and low != high else mean


def _section_text(result: Result) -> str:
    section = result.section
    figure = section.figure
    lines = [f"### {figure.title}", "", f"{figure.ran}.", ""]
    if result.missing is not None:
        lines += [f"Not all ran: {result.missing}", ""]
    if result.finding is not None:
        lines += [result.finding, ""]
    head = [", ".join(axis.split(".")[-1] for axis in section.rows)]
    head += [column.name for column in section.columns]
    body = [
        [", ".join(map(str, row))]
        + [shown(v, c) for v, c in zip(entries, section.columns, strict=True)]
        for row, entries in result.cells.items()
    ]
    costs = "; ".join(result.costs) or "none"
    lines += [markdown(head, body), "", f"Simulated; efficiencies: {costs}. "]
    lines[-1] += (
        f"Seeds {', '.join(map(str, figure.seeds))}; the runs took {result.wall_s:.0f} s."
    )
    lines += ["", *(f"- {note}" for note in figure.notes)]
    lines += [_check_text(one) for one in result.judged]
    return "\n".join(lines) + "\n"


def _check_text(one: Judged) -> str:
    said = f"- {one.verdict.value}: {one.check.name}: {ours(one)}, must be "
    said += band(one.check.band) + (f" ({one.why})" if one.why else "")
    rejected = map(rejection, one.rejections)
    return said + (
        f"; with a planted fault, {', '.join(rejected)}" if one.rejections else ""
    )


def _origin(results: Sequence[Result]) -> str:
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    minutes = sum(result.wall_s for result in results) / 60
    return f"Software: {software}. The runs took {minutes:.0f} minutes in all.\n"


def _restricted(found: Found, axes: Sequence[str], row: Sequence[Any]) -> Found:
    wanted = dict(zip(axes, row, strict=True))
    return Found([run for run in found.runs if wanted.items() <= run.labels.items()])


def _values(
    function: Callable[[Found], float], by_seed: Sequence[Found]
) -> tuple[float, ...]:
    """By seed; () where a run is missing or has no such number."""
    try:
        return tuple(float(function(found)) for found in by_seed)
    except (NotRun, ValueError):
        return ()


def _over(values: Sequence[float], base: Sequence[float]) -> tuple[float, ...]:
    """Seed by seed, since seeds draw other requests."""
    if not values or not base or not all(base):
        return ()
    return tuple(value / under for value, under in zip(values, base, strict=True))


def _finding(section: Section, by_seed: Sequence[Found]) -> str | None:
    numbers = {name: _values(f, by_seed) for name, f in section.numbers.items()}
    if not all(numbers.values()):
        return None
    means = {name: sum(values) / len(values) for name, values in numbers.items()}
    return section.finding.format(**means)
