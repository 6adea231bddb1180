"""Which layers share a pool: windowed and unbounded ones have one for each kind.

Layers of one kind can give up the same blocks, those behind every window (DESIGN §4).
"""

from typing import NamedTuple

from paxkv.models.config import FULL_ATTENTION, ModelConfig


class CacheLayer(NamedTuple):
    """Where a layer's K and V lie."""

    group: int  # of the cache's tuple of pools
    index: int  # in that pool


def cache_layers(config: ModelConfig) -> tuple[CacheLayer, ...]:
    """One per layer. Where both kinds occur, group 0 has the unbounded layers."""
    kinds = [int(window != FULL_ATTENTION) for window in config.layer_windows]
    if len(set(kinds)) == 1:
        kinds = [0] * len(kinds)
    return tuple(CacheLayer(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds))


def layers_per_group(config: ModelConfig) -> tuple[int, ...]:
    """Sizes of the pools along their first axis."""
    groups = [layer.group for layer in cache_layers(config)]
    return tuple(groups.count(group) for group in sorted(set(groups)))


def windowed_groups(config: ModelConfig) -> tuple[bool, ...]:
    """Per group, whether its layers have windows."""
    groups = zip(cache_layers(config), config.layer_windows, strict=True)
    windowed = {layer.group for layer, window in groups if window != FULL_ATTENTION}
    return tuple(g in windowed for g in range(len(layers_per_group(config))))


def group_windows(config: ModelConfig) -> tuple[int | None, ...]:
    """Per group, tokens that a position sees in its layers at most; None: all."""
    widest: dict[int, int | None] = {}
    for layer, window in zip(cache_layers(config), config.layer_windows, strict=True):
        before = widest.get(layer.group, 0)
        is_full = window == FULL_ATTENTION or before is None
        widest[layer.group] = None if is_full else max(before or 0, window)
    return tuple(widest[group] for group in sorted(widest))


def period_of(groups: tuple[int, ...]) -> int:
    """The smallest p such that layer i and layer i + p lie in the same group, for all i."""
    size = len(groups)
    return next(p for p in range(1, size + 1) if groups[p:] == groups[: size - p])
