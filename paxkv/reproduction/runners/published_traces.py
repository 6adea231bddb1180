"""Traces that are published, but not shipped: looked for below the folder PAXKV_TRACES."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paxkv.reproduction.figure import NotAvailable

FOLDER = "PAXKV_TRACES"


def find_trace(path: str) -> Path:
    """The file, at its path or, by its name, anywhere below that folder.

    Raises:
      NotAvailable: it is at neither place.
    """
    given = Path(path)
    if given.exists():
        return given
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise NotAvailable(
            f"{given.name} is not shipped; download it (configs/workloads say where) and "
            f"set {FOLDER} to its folder."
        )
    found = next(Path(folder).rglob(given.name), None)
    if found is None:
        raise NotAvailable(f"{FOLDER}={folder} has no {given.name}; download it there.")
    return found


def with_trace(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the trace's place on this machine; as it is without a trace.

    Raises:
      NotAvailable: the trace is not on this machine.
    """
    workload = dict(tree["workload"])
    if workload["structure"] == "trace":
        workload["trace_path"] = str(find_trace(workload["trace_path"]))
    return {**tree, "workload": workload}
