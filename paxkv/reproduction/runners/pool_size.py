"""What the K and V of a model take, and how many of its tokens a cache holds.

Of the tree it reads the trial; `hardware.kv_bytes` is the cache's memory, of all chips.
"""

from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.runners.trials import trial_of
from paxkv.simulation.chips import GIB
from paxkv.simulation.hardware import memory_for_kv

KIND = "computed"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, float | int]:
    """Bytes and tokens, and what the rule of the pool's size would leave for the cache.

    Raises:
      ValueError: `hardware.kv_bytes` is None, or the model does not fit the chips.
    """
    del profile  # no time passes
    trial = trial_of(tree)
    hardware, shape = trial.hardware, trial.model
    if hardware.kv_bytes is None:
        raise ValueError("hardware.kv_bytes=None: give the bytes of the cache.")
    bytes_per_token = sum(shape.kv_bytes_per_token(trial.engine.cache.dtype))
    num_slots = hardware.kv_bytes // bytes_per_token
    left = memory_for_kv(hardware, shape, trial.engine.scheduler.max_num_batched_tokens)
    return {
        "bytes_per_token": bytes_per_token,
        "num_slots": num_slots,
        "num_blocks": num_slots // trial.engine.cache.block_size,
        "weights_bytes": shape.weights_bytes,
        "memory_left_gib": left * hardware.num_chips / GIB,
    }
