"""Figure 18b, ShareGPT, with nothing but memory: what block sizes would do to latency if
the kernel read all of them at the same rate.

Paper: no such figure; its 18b has both, memory and kernel.
Ours, simulated (A100-40): from 16 tokens on the latencies of figure_18b, whose kernel is
flat there; with 1 token a block 0.95 times that at 16. Two minutes of one CPU core.

Run: python -m experiments.paper --figure=18b_memory
"""

from dataclasses import replace

from configs.paper import figure_18b
from paxkv.reproduction.figure import Check, Figure
from paxkv.reproduction.found import Found

SIZES = (1, 4, 16, 64, 256)
LEAST, MOST = figure_18b.BEST


def get_figure() -> Figure:
    base = figure_18b.get_figure()
    trial = {
        **base.trial,
        "hardware": {**base.trial["hardware"], "attention_kernel": "flat"},
    }
    by_name = {check.name: check for check in base.checks}
    shrunk = base.planted[-1]
    return replace(
        base,
        figure="18b_memory",
        title="Latency by block size, ShareGPT, memory only",
        trial=trial,
        grid={"block_size": SIZES},
        checks=(
            by_name[figure_18b.LARGE],
            replace(by_name[figure_18b.SMALL], band=None, sample="out"),
            Check(
                name=f"best of {LEAST} to {MOST} above the best of all",
                ours=_above_best,
                unit="%",
            ),
        ),
        planted=(shrunk,),
        notes=(
            "From 16 tokens on the kernel's table is flat, so the right side is that of "
            "figure 18b, seeds and all. Without the table smaller blocks are no worse, and "
            "never much better: what the paper's figure shows on its left is the kernel.",
        ),
    )


def _above_best(found: Found) -> float:
    latencies = found.each(figure_18b.LATENCY, "block_size")
    among = [each for size, each in latencies.items() if LEAST <= size <= MOST]
    return 100 * (min(among) / min(latencies.values()) - 1)
