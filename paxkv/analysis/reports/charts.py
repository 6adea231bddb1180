"""What a figure shows, as values: chosen from rows here, drawn by `drawing`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line; nothing is drawn where a half width is None."""

    label: str  # empty: it is the only one, and needs no name
    x: tuple[float, ...]
    y: tuple[float, ...]
    half_widths: tuple[float | None, ...]

    def __post_init__(self):
        if not self.x:
            raise ValueError(f"series {self.label!r} has no point; leave it out.")
        if not len(self.x) == len(self.y) == len(self.half_widths):
            raise ValueError(
                f"series {self.label!r} has {len(self.x)} x, {len(self.y)} y and "
                f"{len(self.half_widths)} half widths; they must be as many."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines, each named at its end."""

    title: str
    x_label: str  # with the unit, as of y
    y_label: str
    series: tuple[Series, ...]
    x_base: int | None = None  # of a logarithmic axis; None: linear
    has_log_y: bool = False
    has_steps: bool = False  # each value holds until the next
    y_line: tuple[float, str] | None = None  # a level to compare with, and its name


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars that lie, one a label; with several parts they are stacked."""

    title: str
    x_label: str
    labels: tuple[str, ...]
    parts: Mapping[str, tuple[float, ...]]  # by the part's name, a value a label
    half_widths: tuple[float | None, ...]  # of the whole bar
    colours: Mapping[str, str] | None = None  # of the parts; None: chosen in order
    x_max: float | None = None


Chart = LineChart | BarChart


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Charts side by side, under one line that says of which runs they are."""

    name: str  # of its files
    charts: tuple[Chart, ...]
    caption: str  # kind, device, profile, repetitions
