"""What all comparisons of docs/since_2023.md are made of: the base, the ideas, the shapes.

The base is the scheduler of the PagedAttention paper (configs/systems/vllm_2023.py) with
two changes that a newer model asks for. A step may compute a whole context of prompts,
as vLLM of that time set it, since prompts are not cut. And victims are recomputed: the
paper swaps only requests of several sequences, and here all have one.

Workloads are generated, so that the page needs no files. ShareGPT's lengths are drawn from
its quantiles; of the others, a log-normal has the published means. `PUBLISHED` has what
the real traces have, beside which the page sets what was drawn.
"""

import copy
from collections.abc import Mapping
from typing import Any

from configs import trial

SHORT, LONG = 8_192, 131_072  # contexts: Llama 3's, and Llama 3.1's of the same shape
PARTS = {
    ("llama3_8b", "h100"): (1, 58),  # chips; GiB of cache, the same for all policies
    ("llama3_70b", "h200"): (2, 128),
}
LOGNORMAL = {"structure": "single", "lengths": "lognormal", "too_long": "clip"}

# By name: the workload's keys, the context, and the longest TTFT that is promised (s).
WORKLOADS: Mapping[str, tuple[dict[str, Any], int, float]] = {
    "ShareGPT": ({}, SHORT, 1.0),
    "Azure conversation": (
        dict(
            LOGNORMAL,
            input_tokens=1_155,
            input_sigma=0.7,
            output_tokens=211,
            output_sigma=0.75,
        ),
        SHORT,
        1.0,
    ),
    "Azure code": (
        dict(
            LOGNORMAL,
            input_tokens=2_250,  # cut at the context, 2,050 in the mean
            input_sigma=1.0,
            output_tokens=28,
            output_sigma=1.2,
        ),
        SHORT,
        1.0,
    ),
    "Mooncake": (
        dict(
            LOGNORMAL,
            structure="chat",  # each turn repeats all that was said
            min_turns=1,
            max_turns=3,
            think_s=20.0,
            input_tokens=7_400,  # that a turn adds
            input_sigma=1.2,
            output_tokens=343,
            output_sigma=0.55,
        ),
        LONG,
        5.0,
    ),
}
# Mean, median and 99th percentile of prompts and of outputs, and percent of prompt tokens
# that an infinite cache finds (None: the trace does not tell). ShareGPT: first turns, as
# the paper filtered them; Azure: Patel et al., ISCA 2024; Mooncake: Qin et al., FAST 2025.
PUBLISHED: Mapping[str, tuple[float | None, ...]] = {
    "ShareGPT": (161, 35, 1_460, 338, 271, 1_280, None),
    "Azure conversation": (1_155, 1_020, 4_142, 211, 129, 601, None),
    "Azure code": (2_048, 1_469, 7_436, 28, 13, 251, None),
    "Mooncake": (12_035, 6_909, 85_400, 343, 350, 1_119, 36.6),
}

PREFIX = {"prefix_caching": True}
# Each over the base alone; the last two need the prefix cache that they extend.
IDEAS: Mapping[str, dict[str, dict[str, Any]]] = {
    "2023": {},
    "chunked prefill": {
        "scheduler": {"chunked_prefill": True, "max_num_batched_tokens": 2_048}
    },
    "no-evict": {"scheduler": {"admission": "reserve"}},
    "prefix cache": {"cache": PREFIX},
    "prefix cache by token": {"cache": {**PREFIX, "granularity": "token"}},
    "prefix cache and host": {"cache": {**PREFIX, "host_blocks": 131_072}},  # 256 GiB
}
SHARED_NOWHERE = ("ShareGPT", "Azure conversation", "Azure code")


def setting(workload: str, model: str = "llama3_8b", chip: str = "h100") -> dict[str, Any]:
    """The base's trial; its pool is that of `PARTS`, whatever a step's activations take."""
    keys, context, ttft_s = WORKLOADS[workload]
    num_chips, pool_gib = PARTS[model, chip]
    config = trial.get_config(f"{model},{chip},vllm_2023,sharegpt")
    config.model.max_context = context
    config.hardware.num_chips = num_chips
    config.hardware.kv_bytes = pool_gib * 2**30
    config.cache.host_blocks = 0
    config.scheduler.pressure = "preempt_recompute"
    config.scheduler.max_num_batched_tokens = context
    config.workload.update(keys)
    config.slo.ttft_s = ttft_s
    config.record_requests = False
    return {**config.to_dict(), "duration_s": None, "stop_at_s": None}


def preset(name: str) -> dict[str, Any]:
    """All settings of cache and scheduler of a system of configs/systems."""
    config = trial.get_config(name).to_dict()
    return {part: config[part] for part in ("cache", "scheduler")}


def measured(tree: Mapping[str, Any], duration_s: float, from_s: float) -> dict[str, Any]:
    """The tree with a trace of `duration_s`, whose requests count from `from_s` on."""
    changed = copy.deepcopy(dict(tree))
    changed["duration_s"] = duration_s
    changed["measure"]["from_s"] = from_s
    return changed
