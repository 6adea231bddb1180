"""Figure 14 for real: the shipped model on this machine, with samples and with beams.

Paper: as figure 14. Here the engine serves Alpaca's lengths up to 256 tokens in 128 blocks,
all requests at once, 6 samples or 6 beams each, with paged blocks and with regions of each
request's true length. What carries over is memory: how many sequences run at once while
others wait. Its time is this machine's: a CPU computes all the longer the more run.

Ours (measured on two shared cores of a CPU):

Run: python -m experiments.paper --figure=14_cpu
"""

from configs.local import get_config as local
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

KINDS = {  # the paper's ratio of capacities, where its text has one
    "6 samples": None,
    "6 beams": 2.3,
}
SYSTEMS = {  # under one scheduler, so that memory alone differs
    "vLLM": {"allocator": "paged", "host_blocks": 128},
    "Orca (Oracle)": {"allocator": "contiguous_oracle", "host_blocks": 0},
}


def get_figure() -> Figure:
    trial = local("vllm_2023,alpaca").to_dict()
    trial["record_requests"] = False
    trial["engine"]["max_context"] = 256  # tokens
    # the longest request fits with its six in regions, and a power of two fits buddies
    trial["cache"]["num_blocks"] = 128 + 1
    # more rows than either system fills, so that blocks decide
    trial["scheduler"].update(max_num_seqs=96, max_num_batched_tokens=256)
    trial["workload"].update(
        arrival="at_once", num_requests=24, num_samples=6, too_long="drop"
    )
    at_once = tuple(_ratio(kind, "capacity", "running at once") for kind in KINDS)
    return Figure(
        row="R9",
        figure="14_cpu",
        title="Six samples and six beams, on this machine",
        ran="the shipped model, 24 requests at once, Alpaca's lengths up to 256 tokens",
        runner="serve",
        trial=trial,
        grid={"kind": tuple(KINDS), "system": tuple(SYSTEMS)},
        choices={
            "kind": {
                kind: {"workload": {"use_beam_search": kind == "6 beams"}} for kind in KINDS
            },
            "system": {name: {"cache": keys} for name, keys in SYSTEMS.items()},
        },
        checks=(
            *at_once,
            *(_ratio(kind, "requests_per_s", "requests/s") for kind in KINDS),
        ),
        planted=(
            Planted(
                name="regions of the whole context",
                overrides={"cache.allocator": "contiguous_max", "cache.host_blocks": 0},
                where={"system": ("vLLM",)},
                rejected_by=tuple(check.name for check in at_once),
            ),
        ),
        notes=(
            "Running at once: sequences, in the mean of the steps in which requests wait.",
            "The paper's ratio is of capacities under a load that comes in time.",
        ),
        quick={"workload.num_requests": 12, "grid.kind": ("6 beams",)},
        quick_plants=False,
    )


def _ratio(kind: str, metric: str, words: str) -> Check:
    def value(found: Found, system: str) -> float:
        if metric == "capacity":
            return found("capacity", kind=kind, system=system)
        return 1 / found("duration_s", kind=kind, system=system)  # of the same requests

    is_count = metric == "capacity"
    return Check(
        name=f"{kind}: vLLM over Orca (Oracle), {words}",
        ours=lambda found: value(found, "vLLM") / value(found, "Orca (Oracle)"),
        unit="x",
        paper=None if is_count else KINDS[kind],
        band=(1.0, None) if is_count else None,
    )
