"""What the runs of one seed came to, by the labels of their cells."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class NotRun(LookupError):
    """A check asks for a cell that was not run."""


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
            raise NotRun(f"no run with {labels}")
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
            _label(run, axis): value_at(run.metrics, path) for run in self._with(labels)
        }
        if not found:
            raise NotRun(f"no run with {labels}")
        return found

    def _with(self, labels: Mapping[str, Any]) -> Iterator[Run]:
        for run in self.runs:
            if all(_label(run, axis) == value for axis, value in labels.items()):
                yield run


def value_at(metrics: Mapping[str, Any], path: str) -> Any:
    """Raises a `ValueError` where there is none."""
    value: Any = metrics
    for key in path.split("."):
        if not isinstance(value, Mapping) or value.get(key) is None:
            raise ValueError(f"{path} was not measured")
        value = value[key]
    return value


def _label(run: Run, axis: str) -> Any:
    for name, value in run.labels.items():
        if axis in (name, name.rpartition(".")[2]):
            return value
    raise ValueError(f"no axis {axis} among {', '.join(run.labels)}")
