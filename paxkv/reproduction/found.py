"""What the runs of one seed came to, by the labels of their cells."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class NotRun(LookupError):
    """A check asks for a cell that was not run; `labels` are those it asked for."""

    def __init__(self, labels: Mapping[str, Any]):
        super().__init__(f"no run with {labels}")
        self.labels = labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cell that ran."""

    labels: Mapping[str, Any]  # by axis
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Runs of one figure, seed and cost profile."""

    runs: Sequence[Run]

    def __call__(self, path: str, **labels: Any) -> Any:
        """The metric at a dotted path, of the only run with these labels.

        A label is given by the last part of its axis: `block_size=16` for
        `cache.block_size`.

        Raises:
          NotRun: no run has the labels.
          ValueError: several runs have them, or there is no such metric.
        """
        runs = list(self._with(labels))
        if not runs:
            raise NotRun(labels)
        if len(runs) > 1:
            raise ValueError(f"{len(runs)} runs have {labels}; name more labels.")
        return value_at(runs[0].metrics, path)

    def each(self, path: str, axis: str, **labels: Any) -> dict[Any, Any]:
        """The metric by the label of one axis, in the grid's order.

        Raises:
          NotRun: no run has the labels.
          ValueError: one of them lacks the metric.
        """
        found = {
            label_of(run.labels, axis): value_at(run.metrics, path)
            for run in self._with(labels)
        }
        if not found:
            raise NotRun(labels)
        return found

    def _with(self, labels: Mapping[str, Any]) -> Iterator[Run]:
        return (run for run in self.runs if has_labels(run.labels, labels))


def value_at(metrics: Mapping[str, Any], path: str) -> Any:
    """Raises a `ValueError` where there is none."""
    value: Any = metrics
    for key in path.split("."):
        if not isinstance(value, Mapping) or value.get(key) is None:
            raise ValueError(f"{path} was not measured")
        value = value[key]
    return value


def has_labels(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a cell is one of those with these labels, by axis."""
    return all(label_of(labels, axis) == value for axis, value in wanted.items())


def label_of(labels: Mapping[str, Any], axis: str) -> Any:
    """A cell's label on an axis, which is named in full or by its last part.

    Raises:
      ValueError: the cell's grid has no such axis.
    """
    for name, value in labels.items():
        if axis in (name, name.rpartition(".")[2]):
            return value
    raise ValueError(f"no axis {axis} among {', '.join(labels)}")
