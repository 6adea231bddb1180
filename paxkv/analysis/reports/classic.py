"""Contiguous and paged caches under the same workloads: every number is of a run, counted
by the allocators under the engine's own scheduler."""

from collections.abc import Sequence

import numpy as np

from paxkv.analysis.reports.charts import Figure
from paxkv.analysis.reports.claims import claims_table
from paxkv.analysis.reports.closing import closing_sentences
from paxkv.analysis.reports.counted import (
    allocator_of,
    read_overhead_percent,
    waste_percent,
)
from paxkv.analysis.reports.estimates import estimate, estimate_text
from paxkv.analysis.reports.section import Section, seeds_note
from paxkv.analysis.reports.settings import Point, points_of
from paxkv.analysis.reports.tables import Table
from paxkv.analysis.reports.trial_charts import trial_charts
from paxkv.results import Row

EXPERIMENT = "compare_caches"
WORKLOAD = "workload"  # the axis of its cells
NOTE = (
    "Wasted is what holds no token of a running request and none that another can reuse, "
    "while requests wait; reserved is the part of it that its owner will still use. Read "
    "beyond is counted: positions of whole blocks over those of "
    "the contexts; a contiguous cache reads its contexts only."
)
CLAIMS_NOTE = (
    "Each line is of one workload: a claim that holds under one need not under another. "
    "Ranges are over the contiguous caches, each against paged."
)
FIGURES = ("waste", "running_over_time", "preemptions")
# heads and paths of the aspects of a cache, beside those computed below
ASPECTS: tuple[tuple[str, str, int, float], ...] = (
    ("queue p50, s", "metrics.queue_p50_s", 2, 1.0),
    ("TTFT p95, s", "metrics.ttft_p95_s", 2, 1.0),
    ("preempted", "metrics.num_preemptions", 0, 1.0),
    ("recomputed", "metrics.num_recomputed_tokens", 0, 1.0),
    ("blocks moved", "metrics.num_copied_blocks", 0, 1.0),
    ("at once", "metrics.capacity", 1, 1.0),
    ("peak", "metrics.running_peak", 0, 1.0),
    ("hits, %", "metrics.prefix_hit_percent", 1, 1.0),
    ("tokens/s", "metrics.throughput_tokens_per_s", 0, 1.0),
)


def read_tokens(prompt_tokens: int, output_tokens: int, block_size: int) -> tuple[int, int]:
    """Positions in the blocks that a request's decodes read, and those they attend to.

    Its first token comes from the prompt; the i-th after it attends to prompt + i.
    """
    ends = np.arange(prompt_tokens + 1, prompt_tokens + output_tokens, dtype=np.int64)
    return int((-(-ends // block_size) * block_size).sum()), int(ends.sum())


def classic_sections(place: str, rows: Sequence[Row], prefix: str = "") -> list[Section]:
    """A section for each workload, and one of the claims."""
    workloads: dict[str, list[Point]] = {}
    points, _ = points_of(rows)
    for point in points:
        workload = str(point.rows[0]["cell"][WORKLOAD])
        workloads.setdefault(workload, []).append(_without_workload(point))
    sections = []
    for index, (workload, some) in enumerate(workloads.items()):
        title = f"{workload}: {place}"
        charts = trial_charts(some)
        sections.append(
            Section(
                title=title,
                notes=(seeds_note(some), NOTE),
                tables=(classic_table(some),),
                figures=tuple(
                    Figure(
                        name=f"{prefix}{name}_{index}", charts=charts[name], caption=title
                    )
                    for name in FIGURES
                    if name in charts
                ),
                closing=closing_sentences(some),
            )
        )
    claims = Section(
        title=f"The usual claims: {place}",
        notes=(CLAIMS_NOTE,),
        tables=(claims_table(workloads),),
        figures=(),
    )
    return [*sections, claims]


def _without_workload(point: Point) -> Point:
    settings = {k: v for k, v in point.settings.items() if k != WORKLOAD}
    return Point(settings=settings, rows=point.rows)


def classic_table(points: Sequence[Point]) -> Table:
    """Of one workload: a line for each allocator."""
    lines = []
    for point in points:
        waste = estimate(waste_percent(row) for row in point.rows)
        overhead = estimate(read_overhead_percent(row) for row in point.rows)
        reserved = point.estimate("metrics.partition_percent.reserved")
        tail = point.estimate("metrics.partition_percent.tail")
        aspects = (estimate_text(point.estimate(p), d, s) for _, p, d, s in ASPECTS)
        lines.append(
            (
                allocator_of(point).replace("_", " "),
                estimate_text(waste, 1),
                estimate_text(reserved, 1),
                estimate_text(tail, 1),
                estimate_text(overhead, 1),
                *aspects,
            )
        )
    head = (
        "cache",
        "wasted, %",
        "reserved, %",
        "tail, %",
        "read beyond, %",
        *(a[0] for a in ASPECTS),
    )
    return Table(title="Caches", head=head, lines=tuple(lines))
