"""One simulated trial whose workload may be a published trace, found by its name."""

from collections.abc import Mapping
from typing import Any

from paxkv.reproduction.runners import simulated
from paxkv.reproduction.runners.published_traces import with_trace

KIND = simulated.KIND


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """As `simulated`.

    Raises:
      NotAvailable: the trace is not on this machine.
    """
    return simulated.run(with_trace(tree), profile)
