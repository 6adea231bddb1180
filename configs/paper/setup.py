"""What the paper's evaluation is made of (arXiv 2309.06180, section 6.1, Table 1)."""

import importlib
import json
from pathlib import Path
from typing import Any

from configs import trial
from paxkv.sweeps.grid import complete

POOL = {  # usable blocks of 16 tokens, by the memory of Table 1, and the null block
    "opt_13b": 983 + 1,
    "llama_13b": 983 + 1,
    "opt_66b": 597 + 1,  # 21 GiB
    "opt_175b": 3754 + 1,  # 264 GiB
}
CHIPS = {
    "opt_13b": ("a100_40", 1),
    "llama_13b": ("a100_40", 1),
    "opt_66b": ("a100_40", 4),
    "opt_175b": ("a100_80", 8),
}


NO_SHARING = {  # nor growth, nor swapping: regions of each sequence's true length
    "cache.allocator": "contiguous_oracle",
    "cache.host_blocks": 0,
    "scheduler.pressure": "preempt_recompute",
}


def setting(model: str, workload: str) -> dict[str, Any]:
    """A trial of the paper's scheduler on the chips and the memory of Table 1."""
    chip, num_chips = CHIPS[model]
    config = trial.get_config(f"{model},{chip},vllm_2023,{workload}")
    config.hardware.num_chips = num_chips
    config.cache.num_blocks = POOL[model]
    config.record_requests = False
    return config.to_dict()


def targets() -> dict[str, Any]:
    """Points read off the paper's figures."""
    return json.loads(Path(__file__).with_name("targets.json").read_text("utf-8"))


def opt_13b(workload: str) -> dict[str, Any]:
    return setting("opt_13b", workload)


def system(name: str) -> dict[str, Any]:
    """The keys that a system of configs/systems sets."""
    config = importlib.import_module(f"configs.systems.{name}").get_config().to_dict()
    return {part: dict(config[part]) for part in ("cache", "scheduler")}


# re-implementations under this project's engine
SYSTEMS = complete(
    {
        "FasterTransformer": system("faster_transformer"),
        "Orca (Max)": system("orca_max"),
        "Orca (Pow2)": system("orca_pow2"),
        "Orca (Oracle)": system("orca_oracle"),
        "vLLM": system("vllm_2023"),
    },
    base=trial.get_config("contiguous_max").to_dict(),
)
