"""The same ideas on the real traces, where they are: whether generated shapes mislead.

The traces are not shipped; PAXKV_TRACES names their folder (configs/workloads say where
they are published). They are replayed at their own times, sped up or slowed down to about
what the base can serve on one H100. Ours, simulated: chunked prefill brings the 99th
percentile of gaps to 0.44 (Azure conversation) and 0.29 (code); in Mooncake's first minutes
the cache finds 4 %, and a host tier costs more than it gives. 5 minutes,
on two shared cores.

Run: PAXKV_TRACES=... python -m experiments.since_2023
"""

from configs.since_2023.setup import IDEAS, measured, setting
from configs.since_2023.systems import COLUMNS
from configs.workloads import azure_code, azure_conversation, mooncake
from paxkv.reproduction.figure import Figure
from paxkv.reproduction.found import Found
from paxkv.reproduction.since_page import Section
from paxkv.sweeps.grid import complete

GROUP = "The same on real traces"
TRACES = {  # of which generated shape; its workload, times faster, requests
    "Azure conversation": (azure_conversation, 2.7, 1_400),
    "Azure code": (azure_code, 1.5, 900),
    "Mooncake": (mooncake, 0.2, 800),
}
IDEAS_OF = {  # those that a trace without known prefixes cannot tell from others are out
    "Azure conversation": ("2023", "chunked prefill", "no-evict"),
    "Azure code": ("2023", "chunked prefill", "no-evict"),
    "Mooncake": ("2023", "chunked prefill", "prefix cache", "prefix cache and host"),
}
FINDINGS = {
    "Azure conversation": (
        "As with generated lengths, chunked prefill changes the 99th percentile of gaps, "
        "by a factor of {gap:.2f}, and no-evict nothing ({no_evict:.2f})."
    ),
    "Azure code": (
        "The trace comes in bursts, so queues are longer than with Poisson arrivals. "
        "Chunked prefill changes the 99th percentile of gaps by a factor of {gap:.2f}, as "
        "with generated lengths; no-evict changes nothing ({no_evict:.2f})."
    ),
    "Mooncake": (
        "In the trace's first minutes less repeats than in its whole hour: the prefix "
        "cache finds {hit:.0f} % and with the host {host_hit:.0f} %, and changes the "
        "median TTFT by a factor of {ttft:.2f} and {host_ttft:.2f}. Every evicted "
        "block is written to the host, between steps, whether anybody asks for it again or "
        "not; the fewer do, the less that pays. Chunked prefill changes the p99 "
        "of TPOT by a factor of {tpot:.2f}; that of gaps misses the stalls of the others "
        "here, which are long, but rarer than one gap in a hundred."
    ),
}


def get_sections() -> tuple[Section, ...]:
    return tuple(_section(workload) for workload in TRACES)


def _section(workload: str) -> Section:
    module, rate_scale, num_requests = TRACES[workload]
    trial = measured(setting(workload), 0.0, 0.0) | {"duration_s": None}
    trial["workload"].update(module.get_config().to_dict())
    trial["workload"].update(rate_scale=rate_scale, num_requests=num_requests)
    ideas = IDEAS_OF[workload]
    figure = Figure(
        row="traces",
        figure=f"traces {workload}",
        title=f"{workload}, the trace",
        ran=f"Llama-3-8B on 1 x H100; the first {num_requests:,} requests, {rate_scale:g} "
        "times as fast",
        runner="trace_replay",
        trial=trial,
        grid={"idea": ideas},
        choices={"idea": complete(IDEAS, trial)},
        seeds=(0,),  # nothing is drawn
        quick={"workload.num_requests": 25, "grid.idea": ideas[:2]},
    )
    return Section(
        group=GROUP,
        figure=figure,
        rows=("idea",),
        columns=COLUMNS,
        finding=FINDINGS[workload],
        numbers=_numbers(ideas),
    )


def _numbers(ideas: tuple[str, ...]):
    gaps, ttft, hits = "latency.itl_s.p99", "latency.ttft_s.p50", "prefix_hit_percent"
    numbers = {
        "gap": _over(gaps, "chunked prefill"),
        "tpot": _over("latency.tpot_s.p99", "chunked prefill"),
    }
    if "no-evict" in ideas:
        numbers |= {"no_evict": _over(gaps, "no-evict")}
    if "prefix cache" in ideas:
        numbers |= {
            "hit": lambda found: found(hits, idea="prefix cache"),
            "host_hit": lambda found: found(hits, idea="prefix cache and host"),
            "ttft": _over(ttft, "prefix cache"),
            "host_ttft": _over(ttft, "prefix cache and host"),
        }
    return numbers


def _over(path: str, idea: str):
    def ratio(found: Found) -> float:
        return found(path, idea=idea) / found(path, idea="2023")

    return ratio
