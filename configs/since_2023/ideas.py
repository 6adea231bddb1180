"""One idea at a time over the scheduler of 2023: Llama-3-8B on one H100.

Each workload is served at rates from 0.6 to 1.4 times what the base can serve, of which
the second is about 0.9 times that. Ours, simulated (efficiencies assumed), over the base:
chunked prefill brings the 99th percentile of gaps to 0.28 (Azure code) to 0.73 (ShareGPT)
at the second rate, but to 2.8 at Mooncake's lowest, and the capacity to 1.00 to 1.10; a
prefix cache the median TTFT of Mooncake's shape to 0.45 and its capacity to 1.06, with a
host tier to 0.53 and 1.08; by token as by block; no-evict the capacity to 0.91 (ShareGPT)
to 1.00. 38 minutes, on two shared cores.

Run: python -m experiments.since_2023
"""

from collections.abc import Mapping
from typing import Any

from configs.since_2023.setup import IDEAS, SHARED_NOWHERE, measured, setting
from paxkv.analysis.capacity import first_crossing
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found, NotRun
from paxkv.reproduction.since_page import Column, Section
from paxkv.sweeps.grid import complete

GROUP = "One idea at a time"
LIMIT_S = 0.1  # per output token, of the mean normalised latency: about reading speed
RATE = "workload.rate_per_s"
GAPS = "latency.itl_s.p99"
# arrivals a second, and those of the ideal profile; Mooncake's are sessions of two requests
RATES: Mapping[str, tuple[float, ...]] = {
    "ShareGPT": (36.0, 50.0, 62.0),
    "Azure conversation": (13.0, 18.0, 24.0),
    "Azure code": (8.0, 11.0, 14.0),
    "Mooncake": (0.35, 0.55, 0.8, 1.1),
}
# times these rates, where chips reach what is published
IDEAL = {"Azure conversation": 2.2, "Mooncake": 1.7}
LENGTHS: Mapping[str, tuple[float, float]] = {  # trace, and from when it counts (s)
    "ShareGPT": (60.0, 15.0),
    "Azure conversation": (80.0, 15.0),
    "Azure code": (80.0, 15.0),
    "Mooncake": (240.0, 40.0),
}
QUICK = {"ShareGPT": 4.0, "Azure conversation": 8.0, "Azure code": 8.0, "Mooncake": 20.0}
FINDINGS = {
    "ShareGPT": (
        "Chunked prefill changes the capacity by a factor of {chunked:.2f} and the 99th "
        "percentile of gaps by {gap:.2f} ({low_gap:.2f} at the lowest rate). An H100 "
        "beside 8 billion weights has room for {pool:,.0f} tokens, and "
        "grouped-query attention made each of them a sixth of OPT-13B's: "
        "above its capacity the base runs up to {running:,.0f} requests at once "
        "and preempts {preempted:.0f}, so memory, which the paper was about, is hardly "
        "what is short. No-evict saves these few, and by the room that it reserves costs "
        "more than they do ({no_evict:.2f})."
    ),
    "Azure conversation": (
        "Prompts are seven times as long, and every whole prompt stops all outputs for as "
        "long as it takes: cutting it up changes the 99th percentile of gaps by a factor "
        "of {gap:.2f} ({low_gap:.2f} at the lowest rate) and the capacity by "
        "{chunked:.2f}. No-evict: {no_evict:.2f}."
    ),
    "Azure code": (
        "Nearly all work is prompts, and outputs are so short that one gap decides how a "
        "request feels: chunked prefill changes the gaps by a factor of {gap:.2f} "
        "({low_gap:.2f} at the lowest rate) and the capacity by {chunked:.2f}. No-evict: "
        "{no_evict:.2f}."
    ),
    "Mooncake": (
        "Long prompts that return: the prefix cache changes the capacity by a factor of "
        "{prefix:.2f} and the median time to the first token by {prefix_ttft:.2f}; with a "
        "host tier of 256 GiB by {host:.2f} and {host_ttft:.2f}. The pool is full of "
        "running requests when load is high, so cached blocks are evicted before they are "
        "asked for again: above capacity the cache alone finds {prefix_hit:.0f} % of the "
        "prompt tokens, with the host {host_hit:.0f} %. Matching to the token and not to "
        "the block of 16 adds nothing ({token:.2f} against {prefix:.2f}) where what is "
        "shared is thousands of tokens long. Chunked prefill: the 99th percentile of gaps "
        "by {gap:.2f}, but by {low_gap:.2f} at the lowest rate, where whole prompts stop "
        "the others so rarely that one gap in a hundred does not show it, and chunks, "
        "which spread the same work over many gaps, do; capacity by {chunked:.2f}."
    ),
}


def get_sections() -> tuple[Section, ...]:
    calibrated = [_section(workload, "calibrated") for workload in RATES]
    ideal = [_section(workload, "ideal") for workload in IDEAL]
    return (*calibrated, *ideal)


def _section(workload: str, profile: str) -> Section:
    rates = _rates(workload, profile)
    middle, high = rates[1], rates[-1]
    is_ideal = profile == "ideal"
    is_shared = workload not in SHARED_NOWHERE
    ideas = tuple(IDEAS)[: len(IDEAS) if is_shared else 3]
    # half as long, since it is a check of the other profile's ratios
    duration_s, from_s = (time / (2 if is_ideal else 1) for time in LENGTHS[workload])
    trial = measured(setting(workload), duration_s, from_s)
    figure = Figure(
        row="ideas",
        figure=f"ideas {workload} {profile}",
        title=f"{workload}, ideal chips" if is_ideal else workload,
        ran=f"Llama-3-8B on 1 x H100; {', '.join(f'{rate:.4g}' for rate in rates)} "
        f"arrivals/s for {duration_s:.0f} s",
        runner="simulate",
        trial=trial,
        grid={"idea": ideas, "workload": {"rate_per_s": rates}},
        choices={"idea": complete(IDEAS, trial)},
        seeds=(0,) if is_ideal else (0, 1, 2),
        profiles=(profile,),
        checks=_checks(middle, high) if is_shared and not is_ideal else (),
        planted=_planted(middle, high) if is_shared and not is_ideal else (),
        quick={
            "grid.idea": ideas[:1] if is_ideal else ideas,
            f"grid.{RATE}": (middle,),
            "duration_s": QUICK[workload],
            "measure.from_s": 0.0,
        },
        quick_plants=False,
    )
    finding = FINDINGS[workload]
    if is_ideal:
        finding = f"One seed, and chips that reach what is published. {finding}"
    return Section(
        group=GROUP,
        figure=figure,
        rows=("idea",),
        columns=_columns(rates),
        finding=finding,
        numbers=_numbers(rates, ideas),
    )


def _rates(workload: str, profile: str) -> tuple[float, ...]:
    times = IDEAL[workload] if profile == "ideal" else 1.0
    return tuple(round(rate * times, 3) for rate in RATES[workload])


def _columns(rates: tuple[float, ...]) -> tuple[Column, ...]:
    low, middle, high = rates[0], rates[1], rates[-1]
    return (
        Column(name="capacity, /s", ours=capacity, has_range=True, is_drawn=True),
        Column(name="over 2023", ours=capacity, over_first=True, has_range=True),
        Column(name="TTFT p50, s", ours=_at(low, "latency.ttft_s.p50"), is_drawn=True),
        Column(name="TTFT p99, s", ours=_at(low, "latency.ttft_s.p99")),
        Column(name="TPOT p50, s", ours=_at(low, "latency.tpot_s.p50"), digits=3),
        Column(name="TPOT p99, s", ours=_at(low, "latency.tpot_s.p99"), digits=3),
        Column(name="gaps p99, lowest rate", ours=_at(low, GAPS), digits=3),
        Column(
            name="gaps p99, s",
            ours=_at(middle, GAPS),
            digits=3,
            is_drawn=True,
        ),
        Column(name="in SLO, %", ours=_at(middle, "slo.attained_percent"), digits=0),
        Column(name="found, %", ours=_at(middle, "prefix_hit_percent"), digits=1),
        Column(name="preemptions", ours=_at(high, "num_preemptions"), digits=0),
    )


def capacity(found: Found) -> float:
    """Arrivals a second where the mean normalised latency crosses `LIMIT_S`; the lowest or
    the highest rate if it does so beyond them.

    Raises:
      NotRun: there is but one rate.
    """
    latencies = found.each("normalized_latency_s", "rate_per_s")
    if len(latencies) < 2:
        raise NotRun({"rate_per_s": "two or more"})
    rates = list(latencies)
    if latencies[rates[0]] >= LIMIT_S:
        return rates[0]
    return first_crossing(rates, list(latencies.values()), LIMIT_S) or rates[-1]


def _at(rate: float, path: str, **labels: Any):
    return lambda found: found(path, rate_per_s=rate, **labels)


def _capacity_of(idea: str):
    def gain(found: Found) -> float:
        return capacity(_only(found, idea)) / capacity(_only(found, "2023"))

    return gain


def _only(found: Found, idea: str) -> Found:
    return Found([run for run in found.runs if run.labels["idea"] == idea])


def _over(rate: float, path: str, idea: str, base: str = "2023"):
    """The metric of an idea over that of another."""
    mine, other = _at(rate, path, idea=idea), _at(rate, path, idea=base)
    return lambda found: mine(found) / other(found)


def _numbers(rates: tuple[float, ...], ideas: tuple[str, ...]) -> Mapping[str, Any]:
    low, middle, high = rates[0], rates[1], rates[-1]
    ttft, hits = "latency.ttft_s.p50", "prefix_hit_percent"
    numbers = {
        "chunked": _capacity_of("chunked prefill"),
        "no_evict": _capacity_of("no-evict"),
        "gap": _over(middle, GAPS, "chunked prefill"),
        "low_gap": _over(low, GAPS, "chunked prefill"),
        "running": _at(high, "running_peak", idea="2023"),
        "pool": _at(low, "pool.positions", idea="2023"),
        "preempted": _at(high, "num_preemptions", idea="2023"),
    }
    if "prefix cache" not in ideas:
        return numbers
    return numbers | {
        "prefix": _capacity_of("prefix cache"),
        "token": _capacity_of("prefix cache by token"),
        "host": _capacity_of("prefix cache and host"),
        "prefix_ttft": _over(low, ttft, "prefix cache"),
        "host_ttft": _over(low, ttft, "prefix cache and host"),
        "prefix_hit": _at(high, hits, idea="prefix cache"),
        "host_hit": _at(high, hits, idea="prefix cache and host"),
    }


def _checks(middle: float, high: float) -> tuple[Check, ...]:
    hits = "prefix_hit_percent"
    return (
        Check(
            name="prefix cache: prompt tokens found",
            ours=_at(middle, hits, idea="prefix cache"),
            unit="%",
            band=(1.0, 45.0),
            full_only=True,
        ),
        Check(
            name="chunked prefill: p99 of gaps over the base's",
            ours=_over(middle, GAPS, "chunked prefill"),
            band=(None, 0.8),
            full_only=True,
        ),
        Check(
            name="host tier: tokens found over those of the cache alone, above capacity",
            ours=_over(high, hits, "prefix cache and host", "prefix cache"),
            band=(1.2, None),
            full_only=True,
        ),
    )


def _planted(middle: float, high: float) -> tuple[Planted, ...]:
    finds, gaps, host = (check.name for check in _checks(middle, high))
    return (
        Planted(
            name="a cache that finds nothing",
            overrides={"cache.force_miss": True},
            where={"idea": ("prefix cache",), RATE: (middle,)},
            rejected_by=(finds,),
        ),
        Planted(
            name="chunks as long as the context",
            overrides={"scheduler.max_num_batched_tokens": 131_072},
            where={"idea": ("chunked prefill",), RATE: (middle,)},
            rejected_by=(gaps,),
        ),
        Planted(
            name="no room on the host",
            overrides={"cache.host_blocks": 0},
            where={"idea": ("prefix cache and host",), RATE: (high,)},
            rejected_by=(host,),
        ),
    )
