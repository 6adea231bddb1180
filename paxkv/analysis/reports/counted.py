"""Numbers of a served workload that follow from those in its row."""

from paxkv.analysis.reports.loading import number_at, value_at
from paxkv.analysis.reports.settings import Point
from paxkv.results import Row
from paxkv.simulation.model_shape import ModelShape

READ_TOKENS = "metrics.decode_read_tokens"
CONTEXT_TOKENS = "metrics.decode_context_tokens"


def waste_percent(row: Row) -> float | None:
    """Positions that hold no token of a running request and no reusable one, with a queue:
    what is free while requests wait is wasted, too."""
    used = number_at(row, "metrics.partition_percent.token_states")
    cached = number_at(row, "metrics.partition_percent.cached")
    return None if used is None else 100 - used - (cached or 0.0)


def read_overhead_percent(row: Row) -> float | None:
    """Positions that decodes read in whole blocks, over those that they attend to."""
    read, seen = number_at(row, READ_TOKENS), number_at(row, CONTEXT_TOKENS)
    return 100 * (read / seen - 1) if read is not None and seen else None


def pool_bytes(row: Row) -> float | None:
    """Of K and V. Cache groups may have more or fewer blocks, and bytes per token: of
    several, only a simulation's are known, whose model is the config's."""
    blocks = value_at(row, "pool.blocks_per_group") or ()
    shape, dtype = value_at(row, "config.model"), value_at(row, "config.cache.dtype")
    if row["kind"] == "simulated" and blocks and shape and dtype:
        per_token = ModelShape(**shape).kv_bytes_per_token(dtype)
        size = value_at(row, "pool.block_size")
        pairs = zip(blocks, per_token, strict=True)
        return float(sum((count - 1) * size * each for count, each in pairs))
    positions = number_at(row, "pool.positions")
    each = number_at(row, "pool.bytes_per_token")
    return positions * each if len(blocks) < 2 and positions and each else None


def allocator_of(point: Point) -> str:
    """The name in `paxkv.allocators.ALLOCATORS`."""
    return point.rows[0]["config"]["cache"]["allocator"]
