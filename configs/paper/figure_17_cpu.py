"""Figure 17 for real: the shipped model on this machine, behind histories.

Paper: as figure 17. Here all lengths are scaled from 2,048 to 512 tokens (prompts of 256
at most) and all requests come at once, to a pool of 4,096 positions; tokens are random, and
the model is small. What carries over is memory: how many run at once. Its time is this
machine's: a CPU computes all the longer the more run.

Ours (measured on 2 cores of a CPU, three seeds of 96 requests): 1.46x as many run at once
with full prompts, 1.58x with half new conversations; 1.3x and 1.2x the tokens/s, with seeds
from 0.9x to 1.7x. Two minutes.

Run: python -m experiments.paper --figure=17_cpu
"""

from configs.local import get_config as local
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

ALLOCATORS = {
    "Orca (Max)": "contiguous_max",
    "Orca (Pow2)": "contiguous_pow2",
    "Orca (Oracle)": "contiguous_oracle",
    "vLLM": "paged",
}
ORCAS = tuple(name for name in ALLOCATORS if name.startswith("Orca"))
SHARES = {0.001: "all prompts full", 0.5: "half new conversations"}
AXIS = "workload.new_conversations"


def get_figure() -> Figure:
    trial = local("sharegpt").to_dict()
    trial["record_requests"] = False
    trial["engine"]["max_context"] = 512
    trial["cache"]["prefix_caching"] = False  # no K/V are kept between turns
    trial["workload"].update(
        structure="open_chat",
        new_conversations=0.5,
        max_prompt_tokens=1024,
        arrival="at_once",
        num_requests=96,
        too_long="scale",
        scale_from_tokens=2048,
    )
    return Figure(
        row="R12",
        figure="17_cpu",
        title="A chatbot's long prompts, on this machine",
        ran="the shipped model, 96 requests at once, ShareGPT's turns behind histories",
        runner="serve",
        trial=trial,
        grid={"system": tuple(ALLOCATORS), AXIS: tuple(SHARES)},
        choices={
            "system": {
                name: {"cache": {"allocator": allocator}}
                for name, allocator in ALLOCATORS.items()
            }
        },
        checks=(
            Check(
                name="the three Orcas apart in running requests, all prompts full",
                ours=_spread,
                unit="%",
                paper="similar",
                band=(0.0, 5.0),
            ),
            *(_ratio("running_mean", "running at once", share) for share in SHARES),
            *(_ratio("throughput_tokens_per_s", "tokens/s", share) for share in SHARES),
        ),
        planted=(
            Planted(
                name="no buddy rounding",
                overrides={"cache.allocator": "contiguous_first_fit"},
                where={"system": ("Orca (Oracle)",), AXIS: (0.001,)},
                rejected_by=(
                    "the three Orcas apart in running requests, all prompts full",
                ),
            ),
        ),
        quick={"workload.num_requests": 12, f"grid.{AXIS}": (0.001,)},
    )


def _spread(found: Found) -> float:
    means = [found("running_mean", system=s, new_conversations=0.001) for s in ORCAS]
    return 100 * (max(means) / min(means) - 1)


def _ratio(path: str, words: str, share: float) -> Check:
    def ours(found: Found) -> float:
        vllm, orca = (
            found(path, system=system, new_conversations=share)
            for system in ("vLLM", "Orca (Oracle)")
        )
        return vllm / orca

    return Check(
        name=f"vLLM over Orca (Oracle), {SHARES[share]}, {words}",
        ours=ours,
        unit="x",
        paper=2.0 if path == "throughput_tokens_per_s" else None,
    )
