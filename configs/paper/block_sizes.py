"""What figures over block sizes share: the paper's pool, and where curves cross."""

import math
from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.found import Found
from paxkv.simulation.chips import GIB

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens, of figures 18b and 19
BYTES_PER_TOKEN = 819_200  # OPT-13B in float16
KV_BYTES = 12 * GIB  # Table 1
# the artifact's plot of figure 19a multiplies the measured times to recompute by this
PLOTTED = 0.9
HOST_BYTES = 20 * GIB  # of the artifact, for swapped blocks


def pools() -> dict[int, dict[str, Any]]:
    """By block size, the same bytes on the chip and on the host in blocks of it."""
    return {
        size: {
            "cache": {
                "block_size": size,
                "num_blocks": KV_BYTES // (size * BYTES_PER_TOKEN) + 1,  # the null block
                "host_blocks": HOST_BYTES // (size * BYTES_PER_TOKEN),
            }
        }
        for size in SIZES
    }


def smallest(values: Mapping[int, float]) -> int:
    """The block size with the smallest value."""
    return min(values, key=lambda size: values[size])


def crossover(falling: Mapping[int, float], level: Mapping[int, float]) -> float:
    """The block size from which `falling` is below `level`, between two sizes by their
    logarithms; inf: it never is."""
    before = None
    for size in falling:
        above = falling[size] - level[size]
        if above <= 0:
            if before is None:
                return float(size)
            share = before[1] / (before[1] - above)
            return math.exp((1 - share) * math.log(before[0]) + share * math.log(size))
        before = size, above
    return math.inf


def relocation_crossover(found: Found, factor: float) -> float:
    """Where swapping gets cheaper than recomputation, whose times are multiplied."""
    recompute = found.each("recompute_ms", "block_size")
    return crossover(
        found.each("swap_ms", "block_size"),
        {size: factor * each for size, each in recompute.items()},
    )
