"""Figure 18b, ShareGPT: normalised latency against the block size, OPT-13B.

Paper: best from 16 to 128 tokens a block; digitised, 0.085 s/token at 16, 16 times that at
256 and 27 times at 1.
Ours, simulated (A100-40, costs fitted to Figures 12a, 13 and 19a, the kernel's table to the
left side of this one), three seeds: best at 16; 256 over 16 is 13.8, 2.5 and 9.1, and 1
over 16 is 29, 3.9 and 22. The trace of seed 0 is heavy: 0.56 s/token at 16, where the two
others have 0.05. Two minutes of one CPU core.

Run: python -m experiments.paper --figure=18b
"""

from dataclasses import replace
from typing import Any

from configs.paper.block_sizes import BYTES_PER_TOKEN, KV_BYTES, SIZES, pools, smallest
from configs.paper.setup import opt_13b, targets
from paxkv.reproduction.figure import Check, Curves, Figure, Planted
from paxkv.reproduction.found import Found

LATENCY = "normalized_latency_s"
LARGE, SMALL = "256 over 16", "1 over 16"
# the blocks of 16 tokens, left at any size: a pool that grows with its blocks
NOT_SHRUNK = {"cache.num_blocks": KV_BYTES // (16 * BYTES_PER_TOKEN) + 1}
FLAT = {"hardware.attention_kernel": "flat"}
BEST = (16, 128)  # the least and the most of the paper's best sizes
SEEDS = (1, 0, 2)  # the planted policies have the first; see the notes


def get_figure() -> Figure:
    trial = opt_13b("sharegpt")
    trial["workload"]["rate_per_s"] = 2.0
    trial["duration_s"] = 600.0
    trial["measure"].update(from_s=60.0)
    return Figure(
        row="R14",
        figure="18b",
        title="Latency by block size, ShareGPT",
        ran="OPT-13B, A100-40, ShareGPT at 2 requests/s for 600 s",
        runner="simulate",
        trial=trial,
        grid={"block_size": SIZES},
        choices={"block_size": pools()},
        seeds=SEEDS,
        checks=checks("sharegpt", BEST, least_ratio=5.0),
        planted=planted(BEST),
        quick={
            "seeds": SEEDS[:1],
            "duration_s": 300.0,
            "grid.block_size": (1, 16, 256),
        },
        curves=curves("sharegpt"),
        notes=(
            "The paper says of the rate that it is fixed. At 2 requests/s its Figure 12a "
            "has 1.12 s/token after an hour and this figure 0.085 at the same block size: "
            "it is near the capacity, where ten minutes of different requests differ "
            "much. The three seeds give 0.05, 0.56 and 0.05 at 16 tokens. The heavy one "
            "alone is outside of the bands of both ratios (2.5 and 3.9), as is 256 over 16 "
            "of the mean latencies (3.9). Planted policies and --quick have seed 1: where "
            "the right one fails, a wrong one that fails shows nothing.",
            "The kernel's table of efficiency was fitted to the left side of this figure; "
            "the right side follows from memory alone.",
        ),
    )


def checks(
    workload: str, best: tuple[int, int], least_ratio: float, *, is_slow: bool = False
) -> tuple[Check, ...]:
    """Of a workload; the bands as they were set.

    Args:
      is_slow: small blocks overload the chip so little that it takes long to show.
    """
    paper = dict(zip(SIZES, targets()["fig18b"][workload], strict=True))
    return (
        Check(
            name=_is_best_name(best),
            ours=lambda found: float(best[0] <= _best_size(found) <= best[1]),
            paper=1,
            band=(1, 1),  # of each seed: the mean of the best sizes is no block size
            sample="partly",
        ),
        Check(
            name="best block size",
            ours=_best_size,
            unit="tokens",
            paper=f"{best[0]} to {best[1]}",
            sample="partly",
        ),
        _ratio(LARGE, 256, paper, least_ratio, "out"),
        replace(_ratio(SMALL, 1, paper, 5.0, "in"), full_only=is_slow),
        Check(
            name="latency at 16",
            ours=lambda found: found(LATENCY, block_size=16),
            unit="s/token",
            paper=paper[16],
        ),
    )


def _is_best_name(best: tuple[int, int]) -> str:
    return f"best block size is one of {best[0]} to {best[1]} (1: yes)"


def _best_size(found: Found) -> int:
    return smallest(found.each(LATENCY, "block_size"))


def _ratio(
    name: str, size: int, paper: dict[int, float], least: float, sample: str
) -> Check:
    return Check(
        name=name,
        ours=lambda found: found(LATENCY, block_size=size) / found(LATENCY, block_size=16),
        unit="x",
        paper=round(paper[size] / paper[16], 1),
        band=(least, None),
        sample=sample,
    )


def planted(best: tuple[int, int]) -> tuple[Planted, ...]:
    return (
        Planted(
            name="a kernel as fast at any block size",
            overrides=FLAT,
            where={"block_size": (1, 2, 4, 8)},
            rejected_by=(_is_best_name(best), SMALL),
        ),
        Planted(
            name="as many blocks at any block size",
            overrides=NOT_SHRUNK,
            where={"block_size": (256,)},
            rejected_by=(LARGE,),
        ),
    )


def curves(workload: str) -> Curves:
    points: dict[str, Any] = {"": (SIZES, targets()["fig18b"][workload])}
    return Curves(
        x="block_size",
        y=LATENCY,
        paper=points,
        x_label="tokens a block",
        y_label="normalised latency, s/token",
        log_x=True,
        log_y=True,
    )
