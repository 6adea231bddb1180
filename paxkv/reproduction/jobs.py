"""The cells of a figure as jobs, with those of its planted policies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paxkv.reproduction.figure import Figure, Planted, Tree
from paxkv.sweeps.grid import SEED_KEY, SweepConfig, cell_id, flat, make_cells, nested

MODES = ("full", "quick", "long")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run. Two with one key are the same run, whatever figures they are for."""

    key: str  # a hash of what decides the result
    figure: str
    runner: str
    labels: Tree  # by axis
    seed: int
    profile: str
    planted: str | None  # the wrong policy that it has
    config: Tree


def as_mode(figure: Figure, mode: str) -> Figure:
    """The figure with what its `quick` or `long` sets.

    Raises:
      ValueError: it sets a key that the figure's trial or grid lacks.
    """
    if mode == "full":
        return figure
    given = dict(figure.quick if mode == "quick" else figure.long)
    seeds = given.pop("seeds", (0,) if mode == "quick" else figure.seeds)
    grid, leaves = flat(figure.grid), flat(figure.trial)
    for key, value in given.items():
        axis = key.removeprefix("grid.")
        place, name = (grid, axis) if key.startswith("grid.") else (leaves, key)
        if name not in place:
            raise ValueError(
                f"{mode} of figure {figure.figure} sets {key}, which it lacks."
            )
        place[name] = value
    plants = figure.planted
    if mode == "quick":
        plants = tuple(p for p in plants if figure.quick_plants)
    return replace(
        figure, seeds=seeds, grid=nested(grid), trial=nested(leaves), planted=plants
    )


def jobs_of(figure: Figure) -> list[Job]:
    """All runs: each cell with each seed; with the first one each other profile and, by
    the first profile, each planted policy.

    Raises:
      ValueError: the grid is at odds with the trial, as `make_cells` says.
    """
    sweep = SweepConfig(
        kind="simulated", seeds=figure.seeds, grid=figure.grid, choices=figure.choices
    )
    cells = make_cells(figure.trial, sweep)
    jobs = [
        _job(figure, cell.labels, cell.seed, profile, None, cell.config)
        for cell in cells
        for profile in figure.profiles
        if cell.seed == figure.seeds[0] or profile == figure.profiles[0]
    ]
    for planted in figure.planted:
        for cell in cells:
            if cell.seed == figure.seeds[0] and _has(planted, cell.labels, figure):
                config = _with(planted, cell.config, figure)
                jobs.append(
                    _job(
                        figure, cell.labels, cell.seed, figure.profiles[0], planted, config
                    )
                )
    return jobs


def _job(
    figure: Figure,
    labels: Tree,
    seed: int,
    profile: str,
    planted: Planted | None,
    config: Tree,
) -> Job:
    return Job(
        key=cell_id(config, figure.runner, (profile,)),
        figure=figure.figure,
        runner=figure.runner,
        labels=labels,
        seed=seed,
        profile=profile,
        planted=None if planted is None else planted.name,
        config=config,
    )


def _has(planted: Planted, labels: Tree, figure: Figure) -> bool:
    for axis, among in planted.where.items():
        if axis not in labels:
            raise ValueError(
                f"{planted.name!r} of figure {figure.figure} is for the axis {axis}; its "
                f"grid has {', '.join(labels)}."
            )
        if labels[axis] not in among:
            return False
    return True


def _with(planted: Planted, config: Tree, figure: Figure) -> dict[str, Any]:
    leaves = flat(config)
    for key, value in planted.overrides.items():
        if key not in leaves or key == SEED_KEY:
            raise ValueError(
                f"{planted.name!r} of figure {figure.figure} sets {key}, which its trial "
                "lacks or which is the seed."
            )
        leaves[key] = value
    return nested(leaves)


def distinct(jobs: Iterable[Job]) -> Iterator[Job]:
    """The first of each key."""
    seen: set[str] = set()
    for job in jobs:
        if job.key not in seen:
            seen.add(job.key)
            yield job
