"""The cells of a sweep: each way to set what the grid varies, times the seeds."""

import difflib
import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paxkv import results
from paxkv.checks import integer_in, named, one_of

KINDS = ("simulated", "measured")
SEED_KEY = "workload.seed"
ID_LENGTH = 12  # hex digits: of 10,000 cells two are alike once in six million sweeps
# Neither what a cell is called nor where it writes makes it another cell.
NOT_IN_ID = ("name", "output_folder", "sweep")

Tree = Mapping[str, Any]
Setting = tuple[Any, Mapping[str, Any]]  # of one axis: the label, and the keys it sets


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """What a sweep varies. A key of the grid is one of the config, or of `choices`."""

    kind: str  # of the cells: simulated or measured
    seeds: tuple[int, ...]  # of the workload; each cell of the grid runs with each
    grid: Tree  # the tree of the config's keys, with a tuple of values at each leaf
    choices: Tree  # for an axis of several keys: its values, each a tree of overrides
    flags: tuple[str, ...] = ()  # more arguments of each cell

    def __post_init__(self):
        try:
            named("sweep.kind", self.kind, one_of(KINDS))
            for seed in self.seeds:
                named("sweep.seeds", seed, integer_in(0, None, "give a tuple of them"))
        except TypeError as error:
            raise ValueError(str(error)) from None
        if not self.seeds:
            raise ValueError("sweep.seeds is empty; give at least one, such as (0,).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One trial of a sweep."""

    cell_id: str  # a hash of what decides the result
    kind: str
    seed: int
    labels: Mapping[str, Any]  # by axis: the value, or the name of the choice
    overrides: Mapping[str, Any]  # dotted key → value: what differs from the config
    flags: tuple[str, ...]
    config: Tree  # in full

    @property
    def name(self) -> str:
        """For people; cells that differ in their seed only have one name."""
        return ", ".join(f"{k.split('.')[-1]}={v}" for k, v in self.labels.items())


def make_cells(config: Tree, sweep: SweepConfig, given: Collection[str] = ()) -> list[Cell]:
    """All cells, seeds varying fastest.

    Args:
      given: dotted keys that the user has set for all cells; the config has their values.

    Raises:
      ValueError: an axis names no key of the config, has a value of another type or
        none at all, two axes or the user set one key, or two cells are the same.
    """
    base = flat({key: config[key] for key in config if key != "sweep"})
    axes = {
        axis: _settings(axis, values, sweep.choices)
        for axis, values in flat(sweep.grid).items()
    }
    _require_not_given(given, axes)
    cells: dict[str, Cell] = {}
    for chosen in itertools.product(*axes.values()):
        labels = {axis: label for axis, (label, _) in zip(axes, chosen, strict=True)}
        assigned = _joined({axis: s for axis, (_, s) in zip(axes, chosen, strict=True)})
        for seed in sweep.seeds:
            cell = _cell(base, labels, {**assigned, SEED_KEY: seed}, sweep)
            if same := cells.get(cell.cell_id):
                raise ValueError(
                    f"the cells {same.name or same.seed!r} and {cell.name or seed!r} of "
                    f"seed {seed} are the same run; leave one out of sweep.grid or "
                    "sweep.seeds."
                )
            cells[cell.cell_id] = cell
    return list(cells.values())


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of all leaves; an empty tree has none."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update(flat(value, f"{prefix}{key}."))
        else:
            leaves[prefix + key] = value
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that these dotted keys are the leaves of."""
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *above, name = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return tree


def complete(choices: Mapping[str, Tree], base: Tree) -> dict[str, dict[str, Any]]:
    """Each choice sets what any of them sets; what it says nothing of is the base's."""
    leaves = flat(base)
    keys = dict.fromkeys(key for choice in choices.values() for key in flat(choice))
    return {
        label: nested({key: flat(choice).get(key, leaves[key]) for key in keys})
        for label, choice in choices.items()
    }


def cell_id(config: Tree, kind: str, flags: Sequence[str] = ()) -> str:
    """The same for equal configs, whatever the order of their keys."""
    deciding = {key: config[key] for key in config if key not in NOT_IN_ID}
    told = {
        "schema": results.SCHEMA_VERSION,
        "kind": kind,
        "flags": tuple(flags),
        "config": deciding,
    }
    plain = json.loads(results.to_line(told))
    line = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(line.encode()).hexdigest()[:ID_LENGTH]


def flags_of(overrides: Mapping[str, Any]) -> list[str]:
    """The overrides as arguments, in the form that `config_flags` reads."""
    return [f"--config.{key}={value}" for key, value in overrides.items()]


def _settings(axis: str, values: Any, choices: Tree) -> Sequence[Setting]:
    """Of one axis."""
    if not isinstance(values, tuple | list) or not values:
        raise ValueError(
            f"sweep.grid.{axis}={values!r} must be a tuple of at least one value."
        )
    if axis not in choices:
        return [(value, {axis: value}) for value in values]
    offered = choices[axis]
    for label in values:
        if label not in offered:
            raise ValueError(
                f"sweep.grid.{axis} has {label!r}, which sweep.choices.{axis} lacks; it "
                f"has {', '.join(offered)}."
            )
    return [(label, flat(offered[label])) for label in values]


def _require_not_given(
    given: Collection[str], axes: Mapping[str, Sequence[Setting]]
) -> None:
    varied = {key: axis for axis, each in axes.items() for _, keys in each for key in keys}
    for key in given:
        if key == SEED_KEY:
            raise ValueError(f"{key} is set by sweep.seeds; set --config.sweep.seeds.")
        if key in varied:
            raise ValueError(
                f"{key} is varied by the sweep, so it cannot be set for all cells; set "
                f"--config.sweep.grid.{varied[key]}, or leave it out."
            )


def _joined(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all axes set."""
    setter: dict[str, str] = {}
    for axis, keys in settings.items():
        for key in keys:
            if key in setter:
                raise ValueError(
                    f"the axes {setter[key]} and {axis} both set {key}; drop one of them "
                    "from sweep.grid."
                )
            setter[key] = axis
    return {key: value for keys in settings.values() for key, value in keys.items()}


def _cell(
    base: Mapping[str, Any],
    labels: Mapping[str, Any],
    assigned: Mapping[str, Any],
    sweep: SweepConfig,
) -> Cell:
    typed = {key: _like(base, key, value) for key, value in assigned.items()}
    config = nested({**base, **typed})
    return Cell(
        cell_id=cell_id(config, sweep.kind, sweep.flags),
        kind=sweep.kind,
        seed=assigned[SEED_KEY],
        labels=dict(labels),
        overrides=dict(_changed(base, typed)),
        flags=sweep.flags,
        config=config,
    )


def _changed(
    base: Mapping[str, Any], typed: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for key, value in typed.items():
        if value == base[key]:
            continue
        if value is None:
            raise ValueError(
                f"{key} of the config is {base[key]!r}, and no flag can make it None; let "
                "None be the config's value, and the grid have the others."
            )
        yield key, value


def _like(base: Mapping[str, Any], key: str, value: Any) -> Any:
    """The value in the type that the config has there, as a flag would give it."""
    if key not in base:
        near = difflib.get_close_matches(key, base, n=1, cutoff=0.0)
        raise ValueError(
            f"sweep.grid sets {key}, no key of the config; nearest: {near[0]}."
        )
    old = base[key]
    if isinstance(old, float) and type(value) is int:
        return float(value)
    if old is None or value is None or type(value) is type(old):
        return value
    raise ValueError(
        f"sweep.grid sets {key} to {value!r}, a {type(value).__name__}; the config has "
        f"{old!r}, a {type(old).__name__}."
    )
