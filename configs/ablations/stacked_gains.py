"""What paging, GQA or MLA, prefix sharing, int8 and windows gain, alone and stacked.

The base is OPT-13B's shape with 40 heads of K and V in contiguous regions of the whole
context. GQA keeps 8 of them, MLA stores DeepSeek-V3's 576 numbers per layer and token,
windows let five of six layers see 512 tokens, as Gemma 3's do. Only K and V change: the
weights keep their number, and the pool its bytes, which hold two contiguous regions, so
that the last of the ideas are still short of memory. Requests share a prompt of 512
tokens. `experiments.report` makes a table and a figure of each pile of ideas.

Run: python -m experiments.sweep --config=configs/ablations/stacked_gains.py
"""

from ml_collections import config_dict

from configs import trial

IDEAS = {
    "contiguous": {"cache": {"allocator": "contiguous_max"}},
    "paging": {"cache": {"allocator": "paged"}},
    "GQA": {"model": {"num_kv_heads": 8}},
    "MLA": {"model": {"num_kv_heads": 1, "latent_dim": 576, "latent_value_dim": 512}},
    "prefix sharing": {"cache": {"prefix_caching": True}},
    "int8": {"cache": {"dtype": "int8"}},
    "windows": {"model": {"window": 512, "num_window_layers": 33}},
}
PILES = (
    ("paging", "GQA", "prefix sharing", "int8", "windows"),
    ("paging", "MLA", "prefix sharing", "int8"),
)


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("opt_13b,a100_40,shared_prefix")
    config.name = "stacked_gains"
    config.output_folder = "results/stacked_gains"
    config.record_requests = False
    config.hardware.kv_bytes = 3_400_000_000
    config.scheduler.max_num_seqs = 1024  # so that memory is the limit
    config.cache.prefix_caching = False
    config.workload.update(
        num_requests=600,
        shared_tokens=512,
        num_prefixes=1,
        lengths="sharegpt",
        too_long="clip",
        arrival="poisson",
    )
    config.slo.ttft_s = 10.0
    config.slo.tpot_s = 0.3
    labels = [
        *("contiguous", "paging"),
        *(f"paging + {idea}" for idea in IDEAS if idea not in ("contiguous", "paging")),
        *(" + ".join(pile[:count]) for pile in PILES for count in range(3, len(pile) + 1)),
    ]
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0,),
        grid={"ideas": tuple(labels), "workload": {"rate_per_s": (0.125, 2.0, 32.0)}},
        choices={"ideas": {label: _joined(label) for label in labels}},
    )
    return config


def _joined(label: str) -> dict:
    """The overrides of all ideas of a label; none sets what another does."""
    overrides: dict = {}
    for idea in label.split(" + "):
        for subtree, values in IDEAS[idea].items():
            overrides.setdefault(subtree, {}).update(values)
    return overrides
