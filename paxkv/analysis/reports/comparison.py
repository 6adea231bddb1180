"""Two runs side by side: what became slower or faster, and which counters went with it.

The split of each request's time (`RequestRecord`) is an account: its parts add up, so a
sentence may say where seconds went. A counter that changed only went along with them, and
the words say no more.
"""

import math
from collections.abc import Sequence

from paxkv.analysis.closing import SAME
from paxkv.analysis.reports.estimates import Estimate, estimate_text
from paxkv.analysis.reports.runs import Run, changed_settings
from paxkv.analysis.reports.section import Section
from paxkv.analysis.reports.settings import exact_value
from paxkv.analysis.reports.tables import Table

MOST_NAMED = 4  # counters, and causes

# name, path in a row, digits, scale
LATENCIES = (
    ("normalised latency, s/token", "metrics.normalized_latency_s", 3, 1.0),
    ("queueing p50, s", "metrics.queue_p50_s", 3, 1.0),
    ("queueing p95, s", "metrics.queue_p95_s", 3, 1.0),
    ("TTFT p50, s", "metrics.ttft_p50_s", 3, 1.0),
    ("TTFT p95, s", "metrics.ttft_p95_s", 3, 1.0),
    ("TTFT p99, s", "metrics.latency.ttft_s.p99", 3, 1.0),
    ("TPOT p50, ms", "metrics.tpot_p50_s", 2, 1e3),
    ("TPOT p95, ms", "metrics.tpot_p95_s", 2, 1e3),
    ("TPOT p99, ms", "metrics.latency.tpot_s.p99", 2, 1e3),
    ("time between tokens p95, ms", "metrics.itl_p95_s", 2, 1e3),
    ("output tokens/s", "metrics.throughput_tokens_per_s", 1, 1.0),
    ("goodput, requests/s", "metrics.slo.goodput_per_s", 3, 1.0),
)


def compare_runs(one: Run, other: Run) -> Section:
    """The section of a comparison of `other` with `one`."""
    first, second = one.label, other.label
    if first == second:
        first, second = "first", "second"
    differences = changed_settings(one, other)
    notes = [f"{first}: {one.source}; {second}: {other.source}."]
    notes += [
        "They differ in "
        + ", ".join(
            f"{key} ({exact_value(a)} → {exact_value(b)})" for key, a, b in differences
        )
        + "."
        if differences
        else "Their configs are the same, but for seeds."
    ]
    if one.place != other.place:
        notes.append(
            f"THEY RAN IN DIFFERENT PLACES, {one.place} and {other.place}: ratios mix the "
            "machines with the settings."
        )
    tables = [_latencies(one, other, first, second), _counters(one, other, first, second)]
    if one.causes_s and other.causes_s:
        tables.append(_causes(one, other, first, second))
    return Section(
        title=f"{second} compared with {first}, {other.place}",
        notes=tuple(notes),
        tables=tuple(tables),
        figures=(),
        closing=tuple(explained_differences(one, other)),
    )


def explained_differences(one: Run, other: Run) -> list[str]:
    """What changed, where the time went, and what went with it, the most first."""
    sentences = [_latency_sentence(one, other)]
    if one.causes_s and other.causes_s:
        sentences.append(_cause_sentence(one, other))
    else:
        sentences.append(
            "No requests.jsonl with the split of their time lies beside both, so where the "
            "seconds went cannot be said; run with config.record_requests=True."
        )
    sentences.append(_counter_sentence(one, other))
    return sentences


def _latency_sentence(one: Run, other: Run) -> str:
    parts = []
    for name, path, _, _ in LATENCIES:
        value = _ratio(one.point.estimate(path), other.point.estimate(path))
        if value is not None and abs(value - 1) > SAME:
            parts.append((abs(math.log(value)), f"{name.split(',')[0]} {value:.2f} times"))
    if not parts:
        return "Latency and throughput are the same within 2 %."
    parts.sort(reverse=True)
    return "Changed most: " + ", ".join(text for _, text in parts[:MOST_NAMED]) + "."


def _cause_sentence(one: Run, other: Run) -> str:
    """Where the difference of the mean times lies; an account, so it is exact."""
    changes = {cause: other.causes_s[cause] - one.causes_s[cause] for cause in one.causes_s}
    before_s, total_s = sum(one.causes_s.values()), sum(changes.values())
    if abs(total_s) <= SAME * before_s:
        return "In the mean a request took as long, within 2 %."
    told = {c: change for c, change in changes.items() if abs(change) > SAME * abs(total_s)}
    ranked = sorted(told.items(), key=lambda item: -abs(item[1]))
    same_way = [item for item in ranked if item[1] * total_s > 0]
    other_way = [item for item in ranked if item[1] * total_s < 0]
    text = (
        f"In the mean a request took {abs(total_s):.3g} s "
        f"{'longer than' if total_s > 0 else 'less than'} {before_s:.3g} s. The split of "
        f"each request's time shows where: {_shares(same_way, total_s)}"
    )
    if other_way:
        text += f", and the other way {_shares(other_way, total_s)}"
    return f"{text}."


def _shares(changes: Sequence[tuple[str, float]], total_s: float) -> str:
    return ", ".join(
        f"{_cause_name(cause)} {change:+.3g} s ({100 * abs(change / total_s):.0f} %)"
        for cause, change in changes[:MOST_NAMED]
    )


def _cause_name(cause: str) -> str:
    return cause.replace("_", " ")


def _counter_sentence(one: Run, other: Run) -> str:
    changed = []
    for counter in one.counters:
        before, after = one.counters[counter], other.counters.get(counter)
        if before is None or after is None:
            continue
        score = abs(math.log((after + counter.floor) / (before + counter.floor)))
        if score > SAME:
            direction = "rose" if after > before else "fell"
            changed.append(
                (score, f"{counter.name} {direction} from {before:.4g} to {after:.4g}")
            )
    if not changed:
        return "No counter changed by more than 2 %."
    changed.sort(key=lambda pair: -pair[0])
    named = "; ".join(text for _, text in changed[:MOST_NAMED])
    return f"With this goes, the largest change first: {named}."


def _ratio(before: Estimate, after: Estimate) -> float | None:
    if not (before.num_values and after.num_values) or min(before.mean, after.mean) <= 0:
        return None
    return after.mean / before.mean


def _latencies(one: Run, other: Run, first: str, second: str) -> Table:
    lines = []
    for name, path, digits, scale in LATENCIES:
        before, after = one.point.estimate(path), other.point.estimate(path)
        if not (before.num_values or after.num_values):
            continue
        value = _ratio(before, after)
        lines.append(
            (
                name,
                estimate_text(before, digits, scale),
                estimate_text(after, digits, scale),
                "-" if value is None else f"{value:.2f}",
            )
        )
    return Table(title="Latency", head=("", first, second, "ratio"), lines=tuple(lines))


def _counters(one: Run, other: Run, first: str, second: str) -> Table:
    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:,.4g}"

    return Table(
        title="Counters",
        head=("", first, second),
        lines=tuple(
            (counter.name, text(value), text(other.counters.get(counter)))
            for counter, value in one.counters.items()
        ),
    )


def _causes(one: Run, other: Run, first: str, second: str) -> Table:
    return Table(
        title=f"Seconds of a request by cause, mean of {one.num_records:,} and "
        f"{other.num_records:,} requests",
        head=("", first, second, "difference"),
        lines=tuple(
            (
                _cause_name(cause),
                f"{seconds:.4f}",
                f"{other.causes_s[cause]:.4f}",
                f"{other.causes_s[cause] - seconds:+.4f}",
            )
            for cause, seconds in one.causes_s.items()
        ),
    )
