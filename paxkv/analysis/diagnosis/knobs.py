"""What can be turned: settings of a trial's config, each by one step.

A knob has a price, because whatever costs a machine more helps nearly everything: a knob is
compared with those that cost no more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]  # the tree of a trial
Changes = Mapping[str, Any]  # dotted key: its new value

SETTING, MEMORY, MACHINES = range(3)  # prices
PRICE_NAMES = ("setting", "memory", "machines")
_ROWS, _BUDGET = "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"
RUNNING_PEAK = "running_peak"  # beside a config's subtrees: most that ran at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One step of one setting."""

    key: str  # the dotted one that a user sets
    direction: str  # an imperative, completed by the key
    price: int
    change: Callable[[Config], Changes | None]  # None: it cannot be turned further

    def flags(self, config: Config) -> str:
        """What to add to the command; the empty string if it cannot be turned."""
        changes = self.change(config)
        return " ".join(f"--config.{k}={v}" for k, v in (changes or {}).items())


def value_at(config: Config, key: str) -> Any:
    """Of a dotted key.

    Raises:
      ValueError: the config has no such key.
    """
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(
                f"the row's config has no {key}; diagnose rows that simulate_trace or "
                "serve_trace of this version wrote."
            )
        value = value[name]
    return value


def with_changes(config: Config, changes: Changes) -> dict[str, Any]:
    """A copy of the tree with other values at some of its keys."""
    changed = dict(config)
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        changed[name] = with_changes(changed[name], {rest: value}) if rest else value
    return changed


def _scaled(key: str, factor: float, least: int = 1) -> Callable[[Config], Changes | None]:
    """Multiplies an integer that is set."""

    def change(config: Config) -> Changes | None:
        value = value_at(config, key)
        scaled = int(value * factor)
        return None if scaled < least or scaled == value else {key: scaled}

    return change


def _set_to(
    key: str, value: Any, applies: Callable[[Config], bool] = lambda config: True
) -> Callable[[Config], Changes | None]:
    """Gives a key a value, unless it has that already."""

    def change(config: Config) -> Changes | None:
        is_new = value_at(config, key) != value
        return {key: value} if is_new and applies(config) else None

    return change


def _fewer_rows(config: Config) -> Changes | None:
    """Half of those that ran at once: half of those allowed may change nothing."""
    allowed = value_at(config, _ROWS)
    fewer = min(allowed, config.get(RUNNING_PEAK, allowed)) // 2
    return {_ROWS: fewer} if fewer else None


def _more_blocks(config: Config) -> Changes | None:
    num_blocks = value_at(config, "cache.num_blocks")
    if num_blocks is None:  # the pool is what the chips leave, so it takes more of these
        return None
    return {"cache.num_blocks": 2 * (num_blocks - 1) + 1}  # one is the null block


def _other_blocks(factor: float) -> Callable[[Config], Changes | None]:
    """Another block size; the pool keeps its positions."""

    def change(config: Config) -> Changes | None:
        block_size = value_at(config, "cache.block_size")
        num_blocks = value_at(config, "cache.num_blocks")
        scaled = int(block_size * factor)
        if scaled < 1 or value_at(config, "cache.allocator") != "paged":
            return None
        changes: dict[str, Any] = {"cache.block_size": scaled}
        if num_blocks is not None:
            usable = (num_blocks - 1) * block_size // scaled
            if usable < 1:
                return None
            changes["cache.num_blocks"] = usable + 1
        return changes

    return change


def _swapping(config: Config) -> Changes | None:
    """Victims go to the host, which gets as many blocks as the pool has."""
    num_blocks = value_at(config, "cache.num_blocks")
    if value_at(config, "scheduler.pressure") != "preempt_recompute" or not num_blocks:
        return None
    if value_at(config, "cache.allocator") != "paged":
        return None
    return {"scheduler.pressure": "preempt_swap", "cache.host_blocks": num_blocks}


def _is_paged(config: Config) -> bool:
    return value_at(config, "cache.allocator") == "paged"


def _has_replicas(config: Config) -> bool:
    return value_at(config, "router.num_replicas") > 1


def _swaps(config: Config) -> bool:
    return "swap" in value_at(config, "scheduler.pressure")


def _keeps_on_host(config: Config) -> bool:
    return value_at(config, "cache.prefix_caching") and not _swaps(config)


KNOBS: Mapping[str, Knob] = {
    "more_rows": Knob(
        key=_ROWS, direction="raise", price=SETTING, change=_scaled(_ROWS, 2.0)
    ),
    "fewer_rows": Knob(key=_ROWS, direction="lower", price=SETTING, change=_fewer_rows),
    "larger_budget": Knob(
        key=_BUDGET, direction="raise", price=SETTING, change=_scaled(_BUDGET, 2.0)
    ),
    "smaller_budget": Knob(
        key=_BUDGET, direction="lower", price=SETTING, change=_scaled(_BUDGET, 0.5, 16)
    ),
    "reserve": Knob(
        key="scheduler.admission",
        direction="reserve whole outputs with",
        price=SETTING,
        change=_set_to("scheduler.admission", "reserve"),
    ),
    "watermark": Knob(
        key="scheduler.watermark",
        direction="raise",
        price=SETTING,
        change=_set_to("scheduler.watermark", 0.1),
    ),
    "recompute": Knob(
        key="scheduler.pressure",
        direction="recompute instead of swapping with",
        price=SETTING,
        change=_set_to("scheduler.pressure", "preempt_recompute", _swaps),
    ),
    "swap": Knob(
        key="scheduler.pressure",
        direction="swap instead of recomputing with",
        price=SETTING,
        change=_swapping,
    ),
    "no_host_tier": Knob(
        key="cache.host_blocks",
        direction="keep cached blocks off the host with",
        price=SETTING,
        change=_set_to("cache.host_blocks", 0, _keeps_on_host),
    ),
    "larger_blocks": Knob(
        key="cache.block_size", direction="raise", price=SETTING, change=_other_blocks(2.0)
    ),
    "smaller_blocks": Knob(
        key="cache.block_size", direction="lower", price=SETTING, change=_other_blocks(0.5)
    ),
    "paged": Knob(
        key="cache.allocator",
        direction="take single blocks with",
        price=SETTING,
        change=_set_to("cache.allocator", "paged"),
    ),
    "prefix_caching": Knob(
        key="cache.prefix_caching",
        direction="share prefixes with",
        price=SETTING,
        change=_set_to("cache.prefix_caching", True, _is_paged),
    ),
    "shortest_first": Knob(
        key="scheduler.scheduling",
        direction="admit short prompts first with",
        price=SETTING,
        change=_set_to("scheduler.scheduling", "shortest_prefill"),
    ),
    "route_by_prefix": Knob(
        key="router.policy",
        direction="send prefixes to where they are cached with",
        price=SETTING,
        change=_set_to("router.policy", "prefix_aware", _has_replicas),
    ),
    "route_by_load": Knob(
        key="router.policy",
        direction="send requests to the least loaded with",
        price=SETTING,
        change=_set_to("router.policy", "least_loaded", _has_replicas),
    ),
    "fewer_chips": Knob(
        key="hardware.num_chips",
        direction="lower",
        price=SETTING,  # it frees machines
        change=_scaled("hardware.num_chips", 0.5),
    ),
    "more_blocks": Knob(
        key="cache.num_blocks", direction="raise", price=MEMORY, change=_more_blocks
    ),
    "more_chips": Knob(
        key="hardware.num_chips",
        direction="raise",
        price=MACHINES,
        change=_scaled("hardware.num_chips", 2.0),
    ),
    "more_replicas": Knob(
        key="router.num_replicas",
        direction="raise",
        price=MACHINES,
        change=_scaled("router.num_replicas", 2.0),
    ),
}
