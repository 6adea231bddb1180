"""R17, block sizes: how much of the prompts a prefix cache finds, in blocks of 16 to 512.

No published numbers. Ours, computed by the prefix cache: without limit
blocks of 16 find 43.3 % of the tokens of prompts with documents, blocks of 512 38.9 %; of
Mooncake's 21.6 and 21.5 %.

Mooncake's trace says which blocks of 512 tokens are equal, not which parts of them, so its
small blocks only spare the tails; documents behind instructions (100 tokens, then four of
512) are known token by token. The trace as in r17. 30 s on one CPU core.

Run: python -m experiments.paper --figure=r17b
"""

from configs import trial
from paxkv.reproduction.figure import Check, Curves, Figure, Planted
from paxkv.reproduction.found import Found

BLOCK_SIZES = (16, 64, 256, 512)
CAPACITIES = (150_000, 500_000, None)  # tokens
LOST = "documents: found in blocks of 16 less in blocks of 512, without limit"
FALLS = "least that half the block size finds more, without limit"


def get_figure() -> Figure:
    documents = trial.get_config("llama3_8b,h100,vllm_v1,rag").to_dict()
    mooncake = trial.get_config("llama3_8b,h100,vllm_v1,mooncake").to_dict()
    mooncake["workload"]["num_requests"] = 1_000
    documents["workload"]["num_requests"] = 1_500
    config = {
        **documents,
        "replay": {"capacities": CAPACITIES, "eviction": "lru", "block_size": 16},
    }
    return Figure(
        row="R17",
        figure="r17b",
        title="Hits of a prefix cache by block size",
        ran="1,000 prompts of Mooncake, 1,500 with documents; LRU",
        runner="prefix_replay",
        trial=config,
        grid={
            "prompts": ("documents", "Mooncake"),
            "replay": {"block_size": BLOCK_SIZES},
        },
        choices={
            "prompts": {
                "documents": {"workload": _unseeded(documents)},
                "Mooncake": {"workload": _unseeded(mooncake)},
            }
        },
        seeds=(0,),  # of the trace nothing is drawn
        checks=(
            Check(name=FALLS, ours=_least_gain, unit="% of the tokens", band=(0.0, None)),
            Check(name=LOST, ours=_lost, unit="% of the tokens", band=(2.0, None)),
            *(
                Check(
                    name=f"{prompts}: found in blocks of {block_size}, without limit",
                    ours=lambda found, prompts=prompts, block_size=block_size: _found(
                        found, prompts, block_size
                    ),
                    unit="% of the tokens",
                )
                for prompts in ("documents", "Mooncake")
                for block_size in (16, 512)
            ),
        ),
        planted=(
            Planted(
                name="blocks of 512 where 16 are asked for",
                overrides={"replay.block_size": 512},
                where={"prompts": ("documents",), "replay.block_size": (16,)},
                rejected_by=(LOST, FALLS),
            ),
        ),
        quick={"grid.prompts": ("documents",)},
        quick_plants=False,
        curves=Curves(
            x="block_size",
            y="most_found_percent",
            lines="prompts",
            x_label="block size (tokens)",
            y_label="tokens of prompts found (%)",
            log_x=True,
        ),
    )


def _unseeded(config: dict) -> dict:
    """A workload without the seed, which the figure sets."""
    return {key: value for key, value in config["workload"].items() if key != "seed"}


def _found(found: Found, prompts: str, block_size: int) -> float:
    return found("token_hit_percent", prompts=prompts, block_size=block_size)[-1]


def _lost(found: Found) -> float:
    return _found(found, "documents", 16) - _found(found, "documents", 512)


def _least_gain(found: Found) -> float:
    """Of documents, whose tokens are known."""
    by_size = found.each("token_hit_percent", "block_size", prompts="documents")
    most = [percents[-1] for percents in by_size.values()]
    return min(finer - coarser for finer, coarser in zip(most, most[1:], strict=False))
