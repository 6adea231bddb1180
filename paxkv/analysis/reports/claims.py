"""What is usually claimed of paged caches, beside what runs of some workloads found.

The claims are those of the PagedAttention paper (Kwon et al. 2023, arXiv 2309.06180): waste
in sections 1 and 3.1, requests and throughput in 1 and 6.2, the kernel in 7.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paxkv.analysis.reports.counted import (
    allocator_of,
    read_overhead_percent,
    waste_percent,
)
from paxkv.analysis.reports.estimates import Estimate, estimate
from paxkv.analysis.reports.loading import number_at
from paxkv.analysis.reports.settings import Point
from paxkv.analysis.reports.tables import Table
from paxkv.systems import PAGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is said of caches, and the range that would bear it out."""

    words: str
    low: float | int
    high: float | int
    unit: str


WASTE_CONTIGUOUS = Claim(words="contiguous wastes 60-80 %", low=60, high=80, unit="%")
WASTE_PAGED = Claim(words="paged wastes < 5 %", low=0, high=5, unit="%")
AT_ONCE = Claim(words="2-4 times the requests", low=2, high=4, unit="times")
THROUGHPUT = Claim(words="2-4 times the throughput", low=2, high=4, unit="times")
KERNEL = "kernel 20-26 % slower"


def claims_table(workloads: Mapping[str, Sequence[Point]]) -> Table:
    """Each claim under each workload, with what was found and whether it holds."""
    lines = []
    for workload, points in workloads.items():
        paged = next((p for p in points if allocator_of(p) == PAGED), None)
        others = [p for p in points if allocator_of(p) != PAGED]
        for claim, values in _found(paged, others).items():
            lines.append(
                (claim.words, workload, _range(values, claim), verdict(claim, values))
            )
        read = estimate(read_overhead_percent(r) for r in (paged.rows if paged else ()))
        if read.num_values:
            found = f"reads {read.mean:.1f} % more, not timed"
            lines.append((KERNEL, workload, found, "cannot be told"))
    return Table(
        title="What is usually claimed, and what was found",
        head=("claim", "workload", "found", "it"),
        lines=tuple(sorted(lines, key=lambda line: _ORDER.index(line[0]))),
    )


_CLAIMS = (WASTE_CONTIGUOUS, WASTE_PAGED, AT_ONCE, THROUGHPUT)
_ORDER = [*(claim.words for claim in _CLAIMS), KERNEL]


def verdict(claim: Claim, values: Sequence[Estimate]) -> str:
    """Whether all, some or none of the values are in the claim's range."""
    means = [value.mean for value in values if value.num_values]
    if not means:
        return "cannot be told"
    if all(claim.low <= mean <= claim.high for mean in means):
        return "holds"
    if max(means) < claim.low:
        return "less than claimed"
    return "more than claimed" if min(means) > claim.high else "holds in part"


def _found(paged: Point | None, others: Sequence[Point]) -> dict[Claim, list[Estimate]]:
    found = {WASTE_CONTIGUOUS: [estimate(waste_percent(r) for r in p.rows) for p in others]}
    if paged is None:
        return found
    found[WASTE_PAGED] = [estimate(waste_percent(row) for row in paged.rows)]
    for claim, path in (
        (AT_ONCE, "metrics.capacity"),
        (THROUGHPUT, "metrics.throughput_tokens_per_s"),
    ):
        found[claim] = [_ratio(paged, other, path) for other in others]
    return found


def _ratio(paged: Point, other: Point, path: str) -> Estimate:
    """Seed by seed, for they had the same requests."""
    theirs = {row["seed"]: number_at(row, path) for row in other.rows}
    ratios = []
    for row in paged.rows:
        mine, base = number_at(row, path), theirs.get(row["seed"])
        if mine is not None and base:
            ratios.append(mine / base)
    return estimate(ratios)


def _range(values: Sequence[Estimate], claim: Claim) -> str:
    means = [value.mean for value in values if value.num_values]
    if not means:
        return "-"
    low, high = f"{min(means):.1f}", f"{max(means):.1f}"
    return f"{low} {claim.unit}" if low == high else f"{low} to {high} {claim.unit}"
