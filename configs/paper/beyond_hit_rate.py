"""R17: how often a prefix cache hits on Mooncake's conversations, by capacity and policy.

Published: 36.6 % of look-ups without limit, counted from the trace's hashes (105,710 of
288,500); a cache of 3 M tokens has less than half of that, one of 50 M nearly all (Qin et
al., FAST 2025). Ours, computed by the prefix cache itself, block by block: 37 %
of them at 3 M and 99.2 % at 50 M tokens with LRU; who knows the future has 2.6 times
LRU's hits at 3 M. FIFO equals LRU within 0.1 %: a prompt ends with blocks that are new,
so what was used last was also added last, and leaves go first.

The trace is not shipped: configs/workloads/mooncake.py says where it is; PAXKV_TRACES
names its folder. 90 s on one CPU core.

Run: python -m experiments.paper --figure=r17
"""

from configs import trial
from paxkv.analysis.hit_rates import OPTIMUM
from paxkv.reproduction.figure import Check, Curves, Figure, Planted
from paxkv.reproduction.found import Found

SMALL, LARGE = 3_000_000, 50_000_000  # tokens
CAPACITIES = (500_000, 1_500_000, SMALL, 15_000_000, LARGE, None)
POLICIES = ("lru", "lfu", "fifo", "released", "mru", OPTIMUM)


def get_figure() -> Figure:
    config = trial.get_config("llama3_8b,h100,vllm_v1,mooncake").to_dict()
    config["workload"]["num_requests"] = None  # all of them
    config["replay"] = {"capacities": CAPACITIES, "eviction": "lru", "block_size": None}
    return Figure(
        row="R17",
        figure="r17",
        title="Hits of a prefix cache on Mooncake's conversations",
        ran="12,031 prompts in order, blocks of 512 tokens",
        runner="prefix_replay",
        trial=config,
        grid={"replay": {"eviction": POLICIES}},
        seeds=(0,),  # nothing is drawn
        checks=_checks(),
        planted=_planted(),
        quick={
            "grid.replay.eviction": ("lru",),
            "replay.capacities": (SMALL, LARGE, None),
        },
        quick_plants=False,
        curves=Curves(
            x="capacities",
            y="hit_percent",
            lines="replay.eviction",
            x_label="capacity (tokens)",
            y_label="look-ups that hit (%)",
            log_x=True,
        ),
        notes=(
            "Bands beside the exact counts are ours: the paper gives no number for them.",
            "Mooncake's Table 2 has a cache ratio of 40 % for these conversations; its "
            "trace, block by block, has 36.6 %.",
        ),
    )


def _checks() -> tuple[Check, ...]:
    return (
        Check(
            name="look-ups",
            ours=lambda found: found("num_lookups", eviction="lru"),
            paper=288_500,
            band=(288_500, 288_500),
        ),
        Check(
            name="LRU: look-ups that hit, without limit (36.6 %)",
            ours=lambda found: found("num_hits", eviction="lru")[-1],
            paper=105_710,
            band=(105_710, 105_710),
        ),
        Check(
            name="policies: most hits less fewest, without limit",
            ours=_spread_without_limit,
            band=(0, 0),
        ),
        Check(
            name="least that the next larger cache finds more, but the optimum",
            ours=_least_gain,
            unit="look-ups",
            band=(1, None),
        ),
        Check(
            name="LRU: hits at 3 M tokens over those without limit",
            ours=lambda found: _share_of_most(found, SMALL),
            unit="%",
            paper="< 50",
            band=(None, 50.0),
        ),
        Check(
            name="LRU: hits at 50 M tokens over those without limit",
            ours=lambda found: _share_of_most(found, LARGE),
            unit="%",
            paper="about 100",
            band=(95.0, 100.0),
        ),
        Check(
            name="optimum over LRU, hits at 3 M tokens",
            ours=_optimum_over_lru,
            band=(1.0, None),
        ),
    )


def _planted() -> tuple[Planted, ...]:
    return (
        Planted(
            name="a limit of 50 M tokens stays",
            overrides={"replay.capacities": (SMALL, LARGE, LARGE)},
            where={"replay.eviction": ("lru", "mru")},
            rejected_by=(
                "LRU: look-ups that hit, without limit (36.6 %)",
                "policies: most hits less fewest, without limit",
                "least that the next larger cache finds more, but the optimum",
            ),
        ),
        Planted(
            name="blocks that are not full are dropped",
            overrides={"replay.block_size": 512},
            where={"replay.eviction": ("lru",)},
            rejected_by=("look-ups", "LRU: look-ups that hit, without limit (36.6 %)"),
        ),
        Planted(
            name="the newest block is evicted",
            overrides={"replay.eviction": "mru"},
            where={"replay.eviction": ("lru",)},
            rejected_by=("LRU: hits at 50 M tokens over those without limit",),
        ),
        Planted(
            name="the policy knows the future",
            overrides={"replay.eviction": OPTIMUM},
            where={"replay.eviction": ("lru",)},
            rejected_by=("LRU: hits at 3 M tokens over those without limit",),
        ),
        Planted(
            name="the optimum takes the nearest use for the furthest",
            overrides={"replay.eviction": "mru"},
            where={"replay.eviction": (OPTIMUM,)},
            rejected_by=("optimum over LRU, hits at 3 M tokens",),
        ),
    )


def _hits(found: Found, eviction: str) -> dict[int | None, int]:
    """By capacity in tokens."""
    capacities = found("capacities", eviction=eviction)
    return dict(zip(capacities, found("num_hits", eviction=eviction), strict=True))


def _share_of_most(found: Found, capacity: int) -> float:
    hits = _hits(found, "lru")
    return 100 * hits[capacity] / hits[None]


def _optimum_over_lru(found: Found) -> float:
    return _hits(found, OPTIMUM)[SMALL] / _hits(found, "lru")[SMALL]


def _spread_without_limit(found: Found) -> float:
    most = [hits[-1] for hits in found.each("num_hits", "eviction").values()]
    return max(most) - min(most)


def _least_gain(found: Found) -> float:
    return min(
        more - fewer
        for policy, hits in found.each("num_hits", "eviction").items()
        if policy != OPTIMUM  # which has all there are long before
        for fewer, more in zip(hits, hits[1:], strict=False)
    )
