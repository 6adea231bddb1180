"""What differs between rows: the axes and the series of a report, found and not told."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paxkv.analysis.reports.estimates import Estimate, estimate
from paxkv.analysis.reports.loading import name_of, number_at
from paxkv.results import Row
from paxkv.sweeps.grid import flat

RATE = "workload.rate_per_s"
BLOCK_SIZE = "cache.block_size"
POOL_SIZE = "cache.num_blocks"
ADMITTED = "scheduler.max_num_seqs"
NAME = "name"
# keys that make an axis, where they are what was varied
AXES = (RATE, BLOCK_SIZE, POOL_SIZE, ADMITTED)
# of repetitions and of bookkeeping: they never tell two settings apart
_NOT_SETTINGS = (
    "name",
    "output_folder",
    "profiles",
    "record_requests",
    "record_steps",
    "seed",
    "workload.seed",
    "engine.seed",
    "cache.shuffle_seed",
    "cache.memory_fraction",
)
_NO_TREES = ("sweep.", "slo.")
_SEEDS = ("seed", "workload.seed")  # what a sweep varies beside them is a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting, and its rows: one of each seed, the lowest first."""

    settings: Mapping[str, Any]  # of what varies between the points
    rows: tuple[Row, ...]

    def estimate(self, path: str) -> Estimate:
        """Of the number at a dotted path of its rows."""
        return estimate(number_at(row, path) for row in self.rows)

    def label(self, *, without: Iterable[str] = ()) -> str:
        """The settings in short, but some; the rows' name if nothing was varied.

        Empty if all that was varied is left out: then a name says no more, for in a sweep
        it repeats the settings.
        """
        if not self.settings:
            return short_value(name_of(self.rows[0]))
        left = {k: v for k, v in self.settings.items() if k not in set(without)}
        texts = [short_value(value) for value in left.values() if isinstance(value, str)]
        texts += [
            f"{short_key(key)} {short_value(value)}"
            for key, value in left.items()
            if not isinstance(value, str)
        ]
        return ", ".join(texts)


def varying_keys(rows: Sequence[Row]) -> list[str]:
    """Keys that tell the settings of the rows apart, as few as do.

    These are the keys of the rows' `cell`, which a sweep writes; else keys of `config`
    in which rows differ, axes first. A key that follows from those before it is left out.
    """
    trees = [settings_of(row) for row in rows]
    names = list(dict.fromkeys(key for tree in trees for key in tree))
    if all(row.get("cell") for row in rows):
        in_cells = {key for row in rows for key in row["cell"]}
        names = [key for key in names if key in in_cells]
    varied = [key for key in names if len({_hashable(t.get(key)) for t in trees}) > 1]
    if NAME in varied:
        num_names = _num_distinct(trees, [NAME])
        follow = [key for key in varied if _num_distinct(trees, [NAME, key]) == num_names]
        # several keys that follow from the name are what it stands for, as a model's are:
        # then the pool's size, which follows, too, is no axis
        if len(follow) > 2 and num_names < _num_distinct(trees, varied):
            varied = [key for key in varied if key not in AXES or key not in follow]
    rank = {key: index for index, key in enumerate((*AXES, NAME))}
    varied.sort(key=lambda key: rank.get(key, len(rank)))
    kept: list[str] = []
    for key in varied:
        if _num_distinct(trees, [*kept, key]) > _num_distinct(trees, kept):
            kept.append(key)
    return kept


def points_of(rows: Sequence[Row]) -> tuple[list[Point], int]:
    """The rows by setting, and how many were left out as of a setting and seed that was
    run again later; numbers ascend, other settings keep the order of the rows."""
    keys = varying_keys(rows)
    groups: dict[Hashable, dict[Hashable, Row]] = {}
    settings: dict[Hashable, dict[str, Any]] = {}
    for row in rows:
        tree = settings_of(row)
        values = {key: tree.get(key) for key in keys}
        group = tuple(_hashable(value) for value in values.values())
        settings.setdefault(group, values)
        groups.setdefault(group, {})[_seed(row)] = row
    points = [
        Point(settings=settings[group], rows=tuple(sorted(by_seed.values(), key=_seed)))
        for group, by_seed in groups.items()
    ]
    for key in reversed(keys):
        if all(_is_number(point.settings[key]) for point in points):
            points.sort(key=lambda point: point.settings[key])
    num_kept = sum(len(point.rows) for point in points)
    return points, len(rows) - num_kept


def short_key(key: str) -> str:
    """`cache.block_size`: block size."""
    return key.rpartition(".")[2].replace("_", " ")


def exact_value(value: Any) -> str:
    """As a user sets it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_value(value: Any) -> str:
    """As in labels."""
    return exact_value(value).replace("_", " ")


def settings_of(row: Row) -> dict[str, Any]:
    """All that was set, by dotted key, without what only repeats or files a run."""
    settings = {NAME: name_of(row)}
    for key, value in flat(row.get("config") or {}).items():
        if key not in _NOT_SETTINGS and not key.startswith(_NO_TREES):
            settings[key] = value
    cell = row.get("cell") or {}
    return settings | {key: value for key, value in cell.items() if key not in _SEEDS}


def _seed(row: Row) -> tuple[int, int]:
    """What of the row draws its random numbers; the workload's where they differ. -1 where
    the row has none, so that seeds have an order."""
    workload = (row.get("config") or {}).get("workload") or {}
    seeds = row.get("seed"), workload.get("seed")
    first, second = (-1 if seed is None else seed for seed in seeds)
    return first, second


def _num_distinct(trees: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(_hashable(tree.get(key)) for key in keys) for tree in trees})


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_hashable(entry) for entry in value)
    return repr(value) if isinstance(value, Mapping) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
