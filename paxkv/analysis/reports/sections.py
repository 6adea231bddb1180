"""A report: sections of runs of one kind, device and cost profile, never mixed."""

from collections.abc import Sequence

from paxkv.analysis.capacity_rows import rate_unit
from paxkv.analysis.reports.attention_cost import (
    attention_charts,
    attention_note,
    attention_tables,
)
from paxkv.analysis.reports.charts import Chart, Figure
from paxkv.analysis.reports.classic import EXPERIMENT, classic_sections
from paxkv.analysis.reports.closing import CAPACITY, closing_sentences, slo_text
from paxkv.analysis.reports.estimates import estimate_text
from paxkv.analysis.reports.gains import gains_charts, gains_tables
from paxkv.analysis.reports.loading import LoadedRows, failure_text, place_of
from paxkv.analysis.reports.section import Section, seeds_note
from paxkv.analysis.reports.settings import Point, points_of
from paxkv.analysis.reports.tables import Table
from paxkv.analysis.reports.trial_charts import bar_chart, hit_rate_of_replays, trial_charts
from paxkv.analysis.reports.trial_tables import trial_tables
from paxkv.results import Row

CLASSIC = "classic"
TRIALS = "trials"
CAPACITIES = "capacities"
REPLAYS = "replays"
ATTENTION = "attention"
OTHERS = "others"


def content_of(row: Row) -> str:
    """What a row reports."""
    if row.get("experiment") == "capacity":
        return CAPACITIES
    if "problem" in row and "median_ms" in row:
        return ATTENTION
    if row.get("experiment") == EXPERIMENT:
        return CLASSIC
    if "hit_rate_percent" in row and "policy" in row:
        return REPLAYS
    if "partition_percent" in (row.get("metrics") or {}):
        return TRIALS
    return OTHERS


def report_sections(loaded: LoadedRows) -> list[Section]:
    """One for each kind, device and profile, in the order of the rows, and one for what
    went wrong, if anything did."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in loaded.rows:
        groups.setdefault(place_of(row), {}).setdefault(content_of(row), []).append(row)
    sections = []
    for index, (place, contents) in enumerate(groups.items(), 1):
        prefix = f"{index}_" if len(groups) > 1 else ""
        if classic := contents.pop(CLASSIC, None):
            sections += classic_sections(place, classic, prefix)
        if contents:
            sections.append(_section(place, contents, prefix))
    if loaded.failed or loaded.malformed:
        sections.append(_what_went_wrong(loaded))
    return sections


def _section(title: str, contents: dict[str, list[Row]], prefix: str) -> Section:
    points, replaced = points_of(contents.get(TRIALS, []))
    capacities, replaced_capacities = points_of(contents.get(CAPACITIES, []))
    tables = [*trial_tables(points), *gains_tables(points)]
    charts: dict[str, tuple[Chart, ...]] = {**trial_charts(points), **gains_charts(points)}
    if capacities:
        tables.append(_capacity_table(capacities))
        charts["capacity"] = (_capacity_chart(capacities),)
    attention = contents.get(ATTENTION, [])
    tables.extend(attention_tables(attention))
    charts |= attention_charts(attention)
    for trace in dict.fromkeys(row.get("trace") for row in contents.get(REPLAYS, [])):
        rows = [row for row in contents[REPLAYS] if row.get("trace") == trace]
        tables.append(_replay_table(rows, str(trace)))
        if chart := hit_rate_of_replays(rows):
            charts[f"hit_rate_{len(charts)}"] = (chart,)
    runs = [*points, *capacities]
    notes = [seeds_note(runs)] if runs else []
    if replaced + replaced_capacities:
        notes.append(
            f"{replaced + replaced_capacities} earlier rows are left out: their setting "
            "and seed were run again."
        )
    if note := attention_note(attention):
        notes.append(note)
    if others := contents.get(OTHERS):
        names = sorted({str(row.get("experiment")) for row in others})
        notes.append(f"{len(others)} rows have no section here: of {', '.join(names)}.")
    return Section(
        title=title,
        notes=tuple(notes),
        tables=tuple(tables),
        figures=tuple(
            Figure(name=f"{prefix}{name}", charts=some, caption=title)
            for name, some in charts.items()
        ),
        closing=closing_sentences(points, capacities) if points or capacities else (),
    )


def _capacity_table(points: Sequence[Point]) -> Table:
    return Table(
        title="Capacity: the largest rate that meets the objective",
        head=("setting", "n", _unit(points), "objective"),
        lines=tuple(
            (
                point.label(),
                str(len(point.rows)),
                estimate_text(point.estimate(CAPACITY)),
                slo_text(point.rows[0]),
            )
            for point in points
        ),
    )


def _capacity_chart(points: Sequence[Point]) -> Chart:
    found = [(point.label(), point.estimate(CAPACITY)) for point in points]
    label = f"{_unit(points)} with {slo_text(points[0].rows[0])}"
    return bar_chart("Capacity", label, [one for one in found if one[1].num_values])


def _unit(points: Sequence[Point]) -> str:
    """Of the rates of searches; of several workloads, all of them."""
    units = (rate_unit(row["config"]) for point in points for row in point.rows)
    return " or ".join(dict.fromkeys(units))


def _replay_table(rows: Sequence[Row], trace: str) -> Table:
    return Table(
        title=f"Prefix cache over {trace}",
        head=("policy", "blocks", "look-ups", "hits", "hit rate, %"),
        lines=tuple(
            (
                str(row["policy"]),
                "no limit" if row["num_blocks"] is None else f"{row['num_blocks']:,}",
                f"{row['num_lookups']:,}",
                f"{row['num_hits']:,}",
                f"{row['hit_rate_percent']:.2f}",
            )
            for row in rows
        ),
    )


def _what_went_wrong(loaded: LoadedRows) -> Section:
    notes = [f"Failed run: {failure_text(row)}" for row in loaded.failed]
    notes += [f"Left out: {line}" for line in loaded.malformed]
    return Section(title="What went wrong", notes=tuple(notes), tables=(), figures=())
