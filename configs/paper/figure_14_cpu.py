"""Figure 14 for real: the shipped model on this machine, with samples and with beams.

Paper: as figure 14. Here the engine serves Alpaca's lengths up to 128 tokens in 64 blocks,
all requests at once, 6 samples or 6 beams each, with paged blocks and with regions of each
request's true length. What carries over is memory: how many sequences run at once while
others wait. Its time is this machine's: a CPU computes all the longer the more run.

Ours (measured on 2 cores of a CPU, three seeds of 24 requests): 1.9 times the samples and
4.6 times the beams run at once; 1.8 and 3.7 times the requests a step, 0.95 and 2.1 times
the requests a second. A minute.

Run: python -m experiments.paper --figure=14_cpu
"""

from configs.local import get_config as local
from configs.paper.setup import NO_SHARING
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

KINDS = {  # the paper's ratio of capacities, where its text has one
    "6 samples": None,
    "6 beams": 2.3,
}
SYSTEMS = {  # under one scheduler, so that memory decides
    "vLLM": {
        "cache": {"allocator": "paged", "host_blocks": 64},
        "scheduler": {"pressure": "paper"},
    },
    "Orca (Oracle)": {
        "cache": {"allocator": "contiguous_oracle", "host_blocks": 0},
        "scheduler": {"pressure": "preempt_recompute"},
    },
}
RUNNING = "capacity"  # sequences, in the mean of the steps in which requests wait
METRICS = {
    RUNNING: "running at once",
    "num_steps": "requests a step",
    "duration_s": "requests/s",
}


def get_figure() -> Figure:
    trial = local("vllm_2023,alpaca").to_dict()
    trial["record_requests"] = False
    trial["engine"]["max_context"] = 128  # tokens
    # a power of two, for buddies: the longest request's six regions fit, of 8 blocks each
    trial["cache"]["num_blocks"] = 64 + 1
    # rows for 8 requests; regions are for 1 or 2
    trial["scheduler"].update(max_num_seqs=48, max_num_batched_tokens=256)
    trial["workload"].update(
        arrival="at_once", num_requests=24, num_samples=6, too_long="drop"
    )
    checks = {metric: [_ratio(kind, metric) for kind in KINDS] for metric in METRICS}
    return Figure(
        row="R9",
        figure="14_cpu",
        title="Six samples and six beams, on this machine",
        ran="the shipped model, 24 requests at once, Alpaca's lengths up to 128 tokens",
        runner="serve",
        trial=trial,
        grid={"kind": tuple(KINDS), "system": tuple(SYSTEMS)},
        choices={
            "kind": {
                kind: {"workload": {"use_beam_search": kind == "6 beams"}} for kind in KINDS
            },
            "system": SYSTEMS,
        },
        checks=tuple(check for some in checks.values() for check in some),
        planted=(
            Planted(
                name="regions of the whole context",
                overrides=NO_SHARING | {"cache.allocator": "contiguous_max"},
                where={"system": ("vLLM",)},
                rejected_by=tuple(check.name for check in checks[RUNNING]),
            ),
        ),
        notes=(
            "Running at once: sequences, in the mean of the steps in which requests wait.",
            "Requests/s are this machine's, and of what else ran on it; requests a step "
            "are not: what a device would gain whose steps all take as long.",
            "The paper's ratio is of capacities under a load that comes in time.",
            "Requests longer than 128 tokens are left out.",
        ),
        quick={"workload.num_requests": 10, "grid.kind": ("6 beams",)},
        quick_plants=False,
    )


def _value(found: Found, metric: str, kind: str, system: str) -> float:
    value = found(metric, kind=kind, system=system)
    return value if metric == RUNNING else 1 / value  # of the same requests


def _ratio(kind: str, metric: str) -> Check:
    def ours(found: Found) -> float:
        vllm, orca = (_value(found, metric, kind, system) for system in SYSTEMS)
        return vllm / orca

    return Check(
        name=f"{kind}: vLLM over Orca (Oracle), {METRICS[metric]}",
        ours=ours,
        unit="x",
        paper=KINDS[kind] if metric == "duration_s" else None,
        band=(1.0, None) if metric == RUNNING else None,
    )
