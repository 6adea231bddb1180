"""Figure 18b on this CPU: normalised latency of the shipped model against the block size.

Paper: no such numbers; figure_18b has those of the A100.
Ours, measured on the CPU that the rows name: a curve of this machine. Two minutes.

Run: python -m experiments.paper --figure=18b_cpu
"""

from configs.local import get_config as local
from paxkv.reproduction.figure import Check, Curves, Figure

SIZES = (1, 4, 16, 64, 256)
POOL_TOKENS = 2048
LATENCY = "normalized_latency_s"


def get_figure() -> Figure:
    trial = local().to_dict()
    trial["workload"].update(arrival="poisson", rate_per_s=20.0, num_requests=48)
    return Figure(
        row="R14",
        figure="18b_cpu",
        title="Latency by block size, on this CPU",
        ran="the shipped model on this CPU, ShareGPT's lengths scaled to 1,024 tokens",
        runner="serve",
        trial=trial,
        grid={"block_size": SIZES},
        choices={
            "block_size": {
                size: {"cache": {"block_size": size, "num_blocks": POOL_TOKENS // size + 1}}
                for size in SIZES
            }
        },
        checks=tuple(
            Check(
                name=f"{size} over 16",
                ours=lambda found, size=size: (
                    found(LATENCY, block_size=size) / found(LATENCY, block_size=16)
                ),
                unit="x",
            )
            for size in SIZES
            if size != 16
        ),
        quick={"grid.block_size": (16, 256), "workload.num_requests": 12},
        curves=Curves(
            x="block_size",
            y=LATENCY,
            x_label="tokens a block",
            y_label="normalised latency, s/token",
            log_x=True,
        ),
        notes=(
            "The pool holds 2,048 tokens at any block size. vLLM V1's scheduler, as "
            "configs/local.py has it; no number of the paper's A100 is comparable.",
        ),
    )
