"""A diagnosis as text: where the time went, why, what to turn, and what is not known."""

from collections.abc import Sequence

from paxkv.analysis.diagnosis.advice import Advice, Evidence, advise
from paxkv.analysis.diagnosis.causes import SLACK, Finding
from paxkv.analysis.diagnosis.floors import Floor
from paxkv.analysis.request_records import CAUSES

SHORT = {
    "own_prefill": "own prefill",
    "prefill_interference": "others' prefill",
    "recompute": "preemption",  # the wait of victims too
}
FEW_BEYOND = 5  # requests beyond a percentile: below this it is their chance


def seconds(value_s: float) -> str:
    """With three digits and a unit."""
    if value_s >= 1:
        return f"{value_s:.3g} s" if value_s < 1000 else f"{value_s:,.0f} s"
    return f"{value_s * 1e3:.3g} ms"


def cause_name(cause: str) -> str:
    """As in the tables."""
    return SHORT.get(cause, cause)


def split_table(findings: Sequence[Finding]) -> str:
    """Share of each cause in each percentile, in percent of the latency."""
    label = [f"{f.metric.upper()} p{f.percent}" for f in findings]
    width = max(len(cause_name(cause)) for cause in CAUSES)
    head = f"{'% of the time':<{width}}" + "".join(f"{name:>11}" for name in label)
    lines = [head, "-" * len(head)]
    for cause in CAUSES:
        cells = "".join(f"{100 * f.share(cause):>11.1f}" for f in findings)
        lines.append(f"{cause_name(cause):<{width}}{cells}")
    lines.append("-" * len(head))
    values = "".join(f"{seconds(f.value_s):>11}" for f in findings)
    floors = "".join(f"{seconds(sum(f.floor_s.values())):>11}" for f in findings)
    return "\n".join(
        [*lines, f"{'in all':<{width}}{values}", f"{'alone':<{width}}{floors}"]
    )


def verdict(finding: Finding, evidence: Evidence, slo_s: float | None = None) -> str:
    """What the percentile is made of, and the knob; a line or two.

    Args:
      slo_s: the latency that was promised; None: none was.
    """
    title = f"{finding.metric.upper()} p{finding.percent} {seconds(finding.value_s)}"
    missed = slo_s is not None and finding.value_s > slo_s
    if slo_s is not None:
        title += f" ({'misses' if missed else 'meets'} the SLO of {seconds(slo_s)})"
    took_s, floor_s = finding.value_s, sum(finding.floor_s.values())
    if finding.cause is None:
        ratio = took_s / floor_s if floor_s else 1.0
        clear = (
            f"{title}: nothing stands out; such requests take {seconds(floor_s)} alone, "
            f"and {ratio:.2f} times that here ({SLACK} is the limit)."
        )
        return f"{clear}\n{_turn(advise(finding, evidence), evidence)}" if missed else clear
    cause, excess = finding.cause, finding.excess_s
    line = (
        f"{title}: {cause_name(cause)}, {100 * finding.share(cause):.0f} % of it. Of "
        f"{seconds(took_s - floor_s)} over the unloaded {seconds(floor_s)} it is "
        f"{seconds(excess[cause])}"
    )
    if (second := finding.close_second) is not None:
        line += f"; {cause_name(second)} is close, with {seconds(excess[second])}"
    return f"{line}.{_tail(finding)}\n{_turn(advise(finding, evidence), evidence)}"


def _tail(finding: Finding) -> str:
    """What sets the band apart from the median, where that is something else."""
    over = finding.over_median_s
    apart = max(CAUSES, key=lambda cause: over[cause])
    if finding.percent <= 50 or apart == finding.cause or over[apart] <= 0:
        return ""
    return f" What it has over the median is mostly {cause_name(apart)}."


def _turn(advice: Advice, evidence: Evidence) -> str:
    if advice.knob is None:
        return f"  {advice.why}. No setting addresses it."
    knob, flags = advice.knob, advice.knob.flags(evidence.config)
    return f"  {advice.why}. Knob: {knob.direction} {knob.key} ({flags})."


def unknowns(
    kind: str, profile: str, floor: Floor, findings: Sequence[Finding], num_unserved: int
) -> list[str]:
    """What the records cannot tell, as sentences."""
    said = []
    if kind == "simulated":
        said.append(
            f"Times are those of the cost model ({profile}), not of a device; what it "
            "leaves out (network, other tenants, clock changes) is in no cause."
        )
    else:
        said.append(
            "Steps were timed as a whole: their split into prefill, decode and the rest "
            "is an estimate of a cost model. The network and the clients are outside."
        )
    said.append(
        f"What a request takes alone is from {floor.source}"
        + ("." if "cost model" in floor.source else ", so in a busy run it is too high.")
    )
    rare = {
        f.percent: f.num_requests
        for f in findings
        if f.num_requests * (1 - f.percent / 100) < FEW_BEYOND
    }
    said += [
        f"p{percent} of {count:,} requests rests on a few of them: another seed may "
        "name another cause."
        for percent, count in rare.items()
    ]
    if num_unserved:
        said.append(
            f"{num_unserved} requests were rejected or aborted; they have no latency here."
        )
    said.append("Knobs are turned one at a time: what two do together is not known.")
    return said
