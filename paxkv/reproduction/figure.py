"""A published figure as data: what is run, which numbers are compared, and within what.

A file of configs/paper has one `Figure`; what it runs are the cells of a grid over a trial
config (configs/trial.py), as in a sweep. Nothing else is written per figure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paxkv.reproduction.found import Found

Tree = Mapping[str, Any]
Band = tuple[float | int | None, float | int | None]  # both ends belong to it; None: open


Points = tuple[Sequence[float | int], Sequence[float | int]]
SAMPLES = ("in", "partly", "out")  # was the figure looked at when costs were fitted?


class NotAvailable(RuntimeError):
    """What a run needs is not on this machine; the message says what, and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number of the paper beside ours, and the band that ours must be in."""

    name: str  # "Orca (Oracle): token states"
    ours: Callable[[Found], float]  # of the runs of one seed
    unit: str = ""
    paper: float | int | str | None = None  # None: it has no such number
    band: Band | None = None  # None: reported without a verdict
    sample: str = "out"
    # why the full runs are outside the band, after work on it: a FAIL is no surprise
    fails_because: str | None = None
    no_verdict_because: str | None = None  # a band, but nothing may pass it, and why
    full_only: bool = False  # runs of --quick are too short to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A wrong policy that some bands must reject: the cells once more, with it."""

    name: str  # "no buddy rounding"
    overrides: Mapping[str, Any]  # dotted key → value
    rejected_by: tuple[str, ...]  # names of the checks that must leave their band
    # axis → labels of the cells that have it; the others are as they are. Empty: all cells
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A plot: a line per label of an axis, with the paper's points where there are any."""

    x: str  # an axis of the grid, whose labels are numbers; or the path of a list (`y` too)
    y: str  # path of a metric
    lines: str | None = None  # the axis with a line per label; None: one line
    panels: str | None = None  # the axis with a panel per label
    # line's label (or "" if there is one), or "panel/line" → points of the paper
    paper: Mapping[str, Points] = field(default_factory=dict)
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a file of configs/paper gives."""

    row: str  # of the reproduction list: "R2"
    figure: str  # of the paper, as --figure has it: "2", "12a", "table1"
    parts: tuple[str, ...] = ()  # of the paper, if it has several: also names of it
    title: str
    ran: str  # what was run, in a few words
    runner: str  # a name in runners.RUNNERS
    trial: Tree  # a config of configs/trial.py, with what else the runner reads
    grid: Tree  # axis → values, as of a sweep
    choices: Tree = field(default_factory=dict)  # label → overrides, as of a sweep
    seeds: tuple[int, ...] = (0, 1, 2)
    # of costs; checks are of the first, the others show how little it matters
    profiles: tuple[str, ...] = ("calibrated",)
    checks: tuple[Check, ...] = ()
    planted: tuple[Planted, ...] = ()
    # dotted keys of `trial`, "grid.AXIS" or "seeds" → values for --quick and --long;
    # checks of cells that are left out are not judged
    quick: Mapping[str, Any] = field(default_factory=dict)
    long: Mapping[str, Any] = field(default_factory=dict)
    quick_plants: bool = True  # the planted policies run in --quick, too
    curves: Curves | None = None  # None: the checks as bars
    notes: tuple[str, ...] = ()  # quirks of the paper's artifact, and what differs here
