"""What a cell of a figure can run: a module each, loaded in the process that runs it.

Each has `KIND`, what its numbers are (one of results.KINDS), and `run(tree, profile)`,
which takes the cell's config and the name of a cost profile and returns metrics.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """What a module of this package gives."""

    kind: str
    run: Callable[[Mapping[str, Any], str], Mapping[str, Any]]


RUNNERS: Mapping[str, str] = {  # name → module of this package
    "attention": "attention",
    "capacity": "capacity_search",
    "lengths": "lengths",
    "measured_relocation": "measured_relocation",
    "paper_examples": "paper_examples",
    "pool_size": "pool_size",
    "prefix_index": "prefix_index",
    "prefix_replay": "prefix_replay",
    "relocation": "relocation",
    "self_validation": "self_validation",
    "serve": "served",
    "simulate": "simulated",
    "trace_replay": "trace_replay",
}


def load(name: str) -> Runner:
    """The runner of a name; its module is imported here.

    Raises:
      ValueError: there is no such runner.
    """
    if name not in RUNNERS:
        raise ValueError(
            f"runner={name!r} is not offered; use one of {', '.join(RUNNERS)}."
        )
    module = importlib.import_module(f"{__name__}.{RUNNERS[name]}")
    return Runner(kind=module.KIND, run=module.run)
