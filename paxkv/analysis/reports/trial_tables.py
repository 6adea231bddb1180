"""The tables of served workloads: a line for each setting."""

from collections.abc import Sequence

from paxkv.analysis.reports.estimates import estimate_text
from paxkv.analysis.reports.settings import Point, short_key, short_value
from paxkv.analysis.reports.tables import Table

# title of a table: its columns, as head, path in a row, digits, and scale
TRIAL_COLUMNS: dict[str, tuple[tuple[str, str, int, float], ...]] = {
    "Service": (
        ("offered/s", "metrics.offered_rate_per_s", 2, 1.0),
        ("finished", "metrics.num_finished", 0, 1.0),
        ("rejected", "metrics.num_rejected", 0, 1.0),
        ("running", "metrics.running_mean", 1, 1.0),
        ("tokens/s", "metrics.throughput_tokens_per_s", 0, 1.0),
        ("goodput, req/s", "metrics.slo.goodput_per_s", 2, 1.0),
        ("SLO met, %", "metrics.slo.attained_percent", 1, 1.0),
    ),
    "Latency": (
        ("s/token", "metrics.normalized_latency_s", 3, 1.0),
        ("queue p50, s", "metrics.queue_p50_s", 2, 1.0),
        ("TTFT p50, s", "metrics.ttft_p50_s", 2, 1.0),
        ("TTFT p95, s", "metrics.ttft_p95_s", 2, 1.0),
        ("TTFT p99, s", "metrics.latency.ttft_s.p99", 2, 1.0),
        ("TPOT p50, ms", "metrics.tpot_p50_s", 1, 1e3),
        ("TPOT p95, ms", "metrics.tpot_p95_s", 1, 1e3),
        ("TPOT p99, ms", "metrics.latency.tpot_s.p99", 1, 1e3),
    ),
    "Memory, while requests wait": (
        ("at once", "metrics.capacity", 1, 1.0),
        ("positions each", "metrics.held_per_request", 0, 1.0),
        ("token states, %", "metrics.partition_percent.token_states", 1, 1.0),
        ("reserved, %", "metrics.partition_percent.reserved", 1, 1.0),
        ("internal, %", "metrics.partition_percent.internal", 1, 1.0),
        ("tail, %", "metrics.partition_percent.tail", 1, 1.0),
        ("rounding, %", "metrics.partition_percent.rounding", 1, 1.0),
        ("free, %", "metrics.partition_percent.free", 1, 1.0),
    ),
    "Repeated and shared work": (
        ("preempted", "metrics.num_preemptions", 0, 1.0),
        ("recomputed", "metrics.num_recomputed_tokens", 0, 1.0),
        ("prefix hits, %", "metrics.prefix_hit_percent", 1, 1.0),
        ("copied", "metrics.num_copied_blocks", 0, 1.0),
        ("swapped out", "metrics.num_swapped_out_blocks", 0, 1.0),
        ("swapped in", "metrics.num_swapped_in_blocks", 0, 1.0),
    ),
}


def trial_tables(points: Sequence[Point]) -> list[Table]:
    """Columns that no row has a number for are left out, and so are empty tables."""
    axes = list(dict.fromkeys(key for point in points for key in point.settings))
    heads = [short_key(key) for key in axes] or ["run"]
    tables = []
    for title, columns in TRIAL_COLUMNS.items():
        cells = [[point.estimate(path) for _, path, _, _ in columns] for point in points]
        kept = [i for i in range(len(columns)) if any(line[i].num_values for line in cells)]
        if not kept:
            continue
        lines = []
        for point, line in zip(points, cells, strict=True):
            settings = [short_value(point.settings[key]) for key in axes]
            label = ", ".join(settings) if axes else point.label()
            numbers = [estimate_text(line[i], columns[i][2], columns[i][3]) for i in kept]
            lines.append((label, str(len(point.rows)), *numbers))
        head = (", ".join(heads), "n", *(columns[i][0] for i in kept))
        tables.append(Table(title=title, head=head, lines=tuple(lines)))
    return tables
