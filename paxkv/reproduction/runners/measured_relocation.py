"""What the K/V of some tokens cost to swap and to compute again, really.

Of the tree it reads the trial, and `relocation` (`num_tokens`, `rounds`). Blocks go to the
host and come back by the serving path, checksums included.
"""

import statistics
from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.runners.trials import trial_of, whole_blocks

KIND = "measured"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Medians of runs in turns, on the device that jax has.

    Raises:
      ValueError: the blocks do not hold the tokens exactly, or the model not so many.
    """
    from pallas_kernels import benchmarking
    from paxkv.models.loading import load_decoder
    from paxkv.relocation import RelocationBench

    del profile  # its times are real
    trial, wanted = trial_of(tree), tree["relocation"]
    num_tokens, block_size = wanted["num_tokens"], trial.engine.cache.block_size
    num_blocks = whole_blocks(num_tokens, block_size)
    bench = RelocationBench(
        trial.engine,
        load_decoder(trial.engine.model, trial.weights_dtype),
        block_counts=(num_blocks, num_blocks + 1),  # it wants two; one is timed
        token_counts=(num_tokens, num_tokens + 1),
    )
    seconds = benchmarking.interleaved(
        {
            "swap_ms": lambda: bench.swap(num_blocks),
            "recompute_ms": lambda: bench.recompute(num_tokens),
        },
        wanted["rounds"],
        lambda: None,
    )
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return {**medians, "device": bench.executor.device_name}
