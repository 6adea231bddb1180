"""Figure 19a on this CPU: milliseconds to swap 256 tokens and to compute them again.

Paper: no such numbers; figure_19a has those of the A100.
Ours, measured on the CPU that the rows name: out and in, 6.0 ms at a block size of 1, 2.6
at 16, 1.9 at 64; computing 256 tokens again takes 9. Ten seconds of one CPU core.

Run: python -m experiments.paper --figure=19a_cpu
"""

from configs.local import get_config as local
from configs.paper.block_sizes import PLOTTED, relocation_crossover
from paxkv.reproduction.figure import Check, Curves, Figure

SIZES = (1, 4, 16, 64, 256)
NUM_TOKENS = 256


def get_figure() -> Figure:
    trial = local().to_dict()
    trial["relocation"] = {"num_tokens": NUM_TOKENS, "rounds": 25}
    times = [
        Check(
            name=f"swap out and in, block size {size}",
            ours=lambda found, size=size: found("swap_ms", block_size=size),
            unit="ms",
        )
        for size in SIZES
    ]
    return Figure(
        row="R15",
        figure="19a_cpu",
        title="Swapping and recomputation by block size, on this CPU",
        ran="256 tokens of the shipped model, within this machine's memory",
        runner="measured_relocation",
        trial=trial,
        grid={"cache": {"block_size": SIZES}},
        checks=(
            *times,
            Check(
                name="recomputation, block size 16",
                ours=lambda found: found("recompute_ms", block_size=16),
                unit="ms",
            ),
            Check(
                name="curves cross at",
                ours=lambda found: relocation_crossover(found, 1.0),
                unit="tokens",
            ),
            Check(
                name="curves cross at, times the plot's factor",
                ours=lambda found: relocation_crossover(found, PLOTTED),
                unit="tokens",
            ),
        ),
        seeds=(0,),
        quick={"grid.cache.block_size": (1, 16, 256), "relocation.rounds": 7},
        curves=Curves(
            x="cache.block_size",
            y="swap_ms",
            x_label="tokens a block",
            y_label="ms, out and in",
            log_x=True,
        ),
        notes=(
            "No link is crossed: blocks are copied, and checked, within one memory. What "
            "compares with the paper is the shape: a cost per block, and one per byte.",
        ),
    )
