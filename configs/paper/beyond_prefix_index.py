"""R18: a radix tree and chained hashes find the same prefixes; the longest first is nearly
the best order.

Published: admitting the request with the longest cached prefix first reaches 96 % of the
hits that any order could have (SGLang, arXiv 2312.07104). Ours, simulated, three seeds:
99.6 %, depth first 93.8 %, first come first served 62.7 %; and the engine's cache, the
radix tree and a table of chained hashes find the same blocks of every prompt (computed).

128 requests that all wait, of Llama-3-8B on an H100 whose cache holds 16,000 tokens, a
fifth to a half of what differs among them. 25 s on one CPU core.

Run: python -m experiments.paper --figure=r18
"""

from typing import Any

from configs import trial
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

LONGEST_FIRST = "longest_prefix"
SAME = "{}: largest difference of two indexes on a prompt"
BEST = "longest prefix first, of the optimum"


def _workload(structure: str, **given: int) -> dict[str, Any]:
    """Each sets what any of them sets."""
    keys = {
        "shared_tokens": 0,
        "num_prefixes": 1,
        "num_documents": 1_000,
        "documents_per_request": 4,
    }
    return {"workload": {"structure": structure, **keys, **given}}


WORKLOADS = {
    "examples": _workload("shared_prefix", shared_tokens=1_024, num_prefixes=24),
    "documents": _workload("rag", num_documents=12, documents_per_request=3),
    "agents": _workload("agents", shared_tokens=2_000, num_prefixes=12),
}


def get_figure() -> Figure:
    config = trial.get_config("llama3_8b,h100,sglang,shared_prefix").to_dict()
    config["cache"].update(granularity="block", num_blocks=1_001)
    config["workload"].update(
        num_requests=128,  # as many as are sorted
        arrival="at_once",
        popularity_exponent=0.0,
        input_tokens=64,
        output_tokens=64,
        scale_from_tokens=8_192,
    )
    config["index"] = {"capacities": (500, 1_000, None), "eviction": "lru"}
    return Figure(
        row="R18",
        figure="r18",
        title="Prefix indexes, and the order of admission",
        ran="prompts with shared prefixes, at three capacities; simulated at one",
        runner="prefix_index",
        trial=config,
        grid={
            "workload": tuple(WORKLOADS),
            "scheduler": {"scheduling": ("fcfs", LONGEST_FIRST, "dfs_weight")},
        },
        choices={"workload": WORKLOADS},
        checks=_checks(),
        planted=_planted(),
        quick={"grid.scheduler.scheduling": (LONGEST_FIRST,)},
        notes=(
            "The optimum is a cache without limit: all waiting requests are known, and an "
            "order that goes through the tree depth first has as many hits.",
            "The band of the schedule is ours, 96 % and 5 points.",
        ),
    )


def _checks() -> tuple[Check, ...]:
    return (
        *(_same(name) for name in WORKLOADS),
        Check(
            name=BEST,
            ours=lambda found: _percent(found, LONGEST_FIRST),
            unit="%",
            paper=96,
            band=(91.0, 100.0),
        ),
        Check(
            name="depth first, of the optimum",
            ours=lambda found: _percent(found, "dfs_weight"),
            unit="%",
        ),
        Check(
            name="first come, first served, of the optimum",
            ours=lambda found: _percent(found, "fcfs"),
            unit="%",
        ),
    )


def _planted() -> tuple[Planted, ...]:
    return (
        Planted(
            name="the cache evicts what was used last",
            overrides={"index.eviction": "mru"},
            where={"scheduler.scheduling": (LONGEST_FIRST,)},
            rejected_by=tuple(map(SAME.format, WORKLOADS)),
        ),
        Planted(
            name="first come, first served",
            overrides={"scheduler.scheduling": "fcfs"},
            where={"scheduler.scheduling": (LONGEST_FIRST,)},
            rejected_by=(BEST,),
        ),
    )


def _same(name: str) -> Check:
    return Check(
        name=SAME.format(name),
        ours=lambda found: found(
            "largest_difference_tokens", workload=name, scheduling=LONGEST_FIRST
        ),
        unit="tokens",
        band=(0, 0),
    )


def _percent(found: Found, scheduling: str) -> float:
    """Mean over the workloads."""
    each = found.each("percent_of_optimum", "workload", scheduling=scheduling)
    return sum(each.values()) / len(each)
