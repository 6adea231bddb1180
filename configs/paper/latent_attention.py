"""Beyond the paper: sequences per GiB of cache with MHA, GQA and MLA.

One model's layers (OPT-13B's 40) with three kinds of attention: K and V of 40 heads, of 8
heads, and the 576 numbers that DeepSeek-V3 stores (arXiv 2412.19437). Each has the same
4 GiB, paged, which ShareGPT requests that come at once keep full.
Paper: no such figure.
Ours, simulated (seed 0): 2.9, 14.8 and 54.6 requests run per GiB; MLA holds 17.9 and 3.6
times the tokens of MHA and GQA.
Hardware: none (an A100-40 in simulation). Time: half a minute of one core.

Run: python -m experiments.paper --figure=latent
"""

from collections.abc import Callable
from typing import Any

from configs.paper.setup import opt_13b
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

POOL_GIB = 4
LAYERS, HEAD_DIM, BYTES = 40, 128, 2
CONTEXT = 2048  # tokens
MHA, GQA, MLA = "MHA (40 heads)", "GQA (8 heads)", "MLA (576 numbers)"
BYTES_PER_TOKEN = {
    MHA: LAYERS * 2 * 40 * HEAD_DIM * BYTES,
    GQA: LAYERS * 2 * 8 * HEAD_DIM * BYTES,
    MLA: LAYERS * 576 * BYTES,
}
# enough that the pool is full for most of a run, however many it holds
NUM_REQUESTS = {MHA: 150, GQA: 500, MLA: 1200}


def get_figure() -> Figure:
    trial = opt_13b("sharegpt")
    trial["hardware"]["kv_bytes"] = POOL_GIB * 2**30
    trial["cache"]["num_blocks"] = None  # as many as the bytes hold
    trial["workload"]["arrival"] = "at_once"
    exact = tuple(_bytes(attention) for attention in BYTES_PER_TOKEN)
    ratios = tuple(_tokens_ratio(MLA, other) for other in (MHA, GQA))
    return Figure(
        row="R23",
        figure="latent",
        title="Sequences per GiB of cache: MHA, GQA, MLA",
        ran="OPT-13B's layers, A100-40, ShareGPT all at once, 4 GiB of cache",
        runner="simulate",
        trial=trial,
        grid={"attention": tuple(BYTES_PER_TOKEN)},
        choices={
            "attention": {
                MHA: _attention(MHA, num_kv_heads=40),
                GQA: _attention(GQA, num_kv_heads=8),
                MLA: _attention(MLA, num_kv_heads=1, latent_dim=576),
            }
        },
        checks=(
            *exact,
            *ratios,
            *(_contexts(attention) for attention in BYTES_PER_TOKEN),
            *(_running(attention) for attention in BYTES_PER_TOKEN),
            *(_running_ratio(MLA, other) for other in (MHA, GQA)),
        ),
        planted=(
            Planted(
                name="latents stored as K and as V",
                overrides={"model.latent_dim": 2 * 576},
                where={"attention": (MLA,)},
                rejected_by=tuple(c.name for c in (exact[-1], *ratios)),
            ),
            Planted(
                name="K and V of four bytes a number",
                overrides={"cache.dtype": "float32"},
                where={"attention": (MHA, GQA)},
                rejected_by=tuple(c.name for c in exact[:2]),
            ),
        ),
        quick_plants=False,
        notes=(
            "Only K and V differ: weights, layers and outputs are those of OPT-13B.",
            "Memory alone: what attention costs per step differs, too.",
        ),
    )


def _attention(
    name: str, *, num_kv_heads: int, latent_dim: int | None = None
) -> dict[str, Any]:
    value_dim = None if latent_dim is None else 512  # of the latents, those that are V
    return {
        "model": {
            "num_kv_heads": num_kv_heads,
            "latent_dim": latent_dim,
            "latent_value_dim": value_dim,
        },
        "workload": {"num_requests": NUM_REQUESTS[name]},
    }


def _metric(path: str, attention: str) -> Callable[[Found], float]:
    return lambda found: found(path, attention=attention)


def _ratio(path: str, one: str, other: str) -> Callable[[Found], float]:
    above, below = _metric(path, one), _metric(path, other)
    return lambda found: above(found) / below(found)


def _bytes(attention: str) -> Check:
    number = BYTES_PER_TOKEN[attention]
    return Check(
        name=f"{attention}: bytes per token",
        ours=_metric("pool.bytes_per_token", attention),
        unit="B",
        band=(number, number),
    )


def _tokens_ratio(one: str, other: str) -> Check:
    """Of tokens in the pool, which whole blocks and the null block round."""
    number = BYTES_PER_TOKEN[other] / BYTES_PER_TOKEN[one]
    return Check(
        name=f"tokens held, {one} / {other}",
        ours=_ratio("pool.positions", one, other),
        unit="x",
        band=(0.99 * number, 1.01 * number),
    )


def _contexts(attention: str) -> Check:
    positions = _metric("pool.positions", attention)
    return Check(
        name=f"{attention}: sequences of {CONTEXT:,} tokens per GiB",
        ours=lambda found: positions(found) / CONTEXT / POOL_GIB,
        unit="sequences",
    )


def _running(attention: str) -> Check:
    running = _metric("capacity", attention)
    return Check(
        name=f"{attention}: ShareGPT requests that run per GiB",
        ours=lambda found: running(found) / POOL_GIB,
        unit="requests",
    )


def _running_ratio(one: str, other: str) -> Check:
    return Check(
        name=f"requests that run, {one} / {other}",
        ours=_ratio("capacity", one, other),
        unit="x",
    )
