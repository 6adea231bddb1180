"""Figure 16 for real: the shipped model on this machine, behind one prefix.

Paper: as figure 16. Here the engine runs WMT16's own lengths behind prefixes of 80 and
341 tokens, in a pool of 4,096 positions (a quarter of the paper's), all requests at once;
tokens are random, and the model is small. What carries over is memory: how many run at
once, and how much of the prompts is found in the cache. Its time is this machine's: a CPU
computes all the longer the more run.

Ours (measured on 2 cores of a CPU, three seeds): 2.8x and 5.4x as many run at once, which
give 2.1x and 3.6x the tokens/s; every request finds the whole blocks of the prefix. One
minute.

Run: python -m experiments.paper --figure=16_cpu
"""

from configs.local import get_config as local
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

PREFIXES = {80: 1.67, 341: 3.58}  # tokens → the paper's ratio of capacities
SYSTEMS = {  # the first to come computes the prefix, as if it had been there before
    "vLLM": {"allocator": "paged", "prefix_caching": True},
    "Orca (Oracle)": {"allocator": "contiguous_oracle", "prefix_caching": False},
}
AXIS = "workload.shared_tokens"


def get_figure() -> Figure:
    trial = local("shared_prefix").to_dict()
    trial["record_requests"] = False
    trial["engine"]["max_context"] = 640  # the longest needs 609
    trial["workload"].update(
        lengths="wmt16",
        arrival="at_once",
        num_requests=256,
        too_long="refuse",
        scale_from_tokens=None,
    )
    # as many as the pool holds when the prefix is shared
    trial["scheduler"].update(hold_shared_prefixes=True, max_num_seqs=128)
    hits = tuple(_hit(tokens) for tokens in PREFIXES)
    return Figure(
        row="R11",
        figure="16_cpu",
        title="A prefix that all requests share, on this machine",
        ran="the shipped model, 256 requests at once, WMT16 en-de behind a prefix",
        runner="serve",
        trial=trial,
        grid={"system": tuple(SYSTEMS), AXIS: tuple(PREFIXES)},
        choices={"system": {name: {"cache": keys} for name, keys in SYSTEMS.items()}},
        checks=(
            *hits,
            *(_ratio("running_mean", "running at once", each) for each in PREFIXES),
            *(_ratio("throughput_tokens_per_s", "tokens/s", each) for each in PREFIXES),
        ),
        planted=(
            Planted(
                name="no prefix cache",
                overrides={"cache.prefix_caching": False},
                where={"system": ("vLLM",)},
                rejected_by=tuple(check.name for check in hits),
            ),
        ),
        quick={"workload.num_requests": 16, f"grid.{AXIS}": (341,)},
    )


def _hit(tokens: int) -> Check:
    """Of each request but the first, the whole blocks of the prefix."""
    blocks = tokens // 16 * 16

    def ours(found: Found) -> float:
        labels = {"system": "vLLM", "shared_tokens": tokens}
        num_later = found("num_requests", **labels) - 1
        return found("num_cached_tokens", **labels) / num_later

    return Check(
        name=f"prefix of {tokens} tokens: found in the cache by each after the first",
        ours=ours,
        unit="tokens",
        paper=f"{blocks}, a multiple of 16",
        band=(blocks, blocks),
    )


def _ratio(path: str, words: str, tokens: int) -> Check:
    def ours(found: Found) -> float:
        vllm, orca = (found(path, system=s, shared_tokens=tokens) for s in SYSTEMS)
        return vllm / orca

    return Check(
        name=f"prefix of {tokens} tokens: vLLM over Orca (Oracle), {words}",
        ours=ours,
        unit="x",
        paper=PREFIXES[tokens] if path == "throughput_tokens_per_s" else None,
    )
