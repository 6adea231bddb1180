"""What the panels of figure 12 share: traces at rates around the crossing of a latency.

A run is a search: "12b, vLLM" is that system on the model and workload of panel 12b. Its
capacity is the rate at which the normalised latency crosses 0.5 s a token, between
measured points a line. As in the plots of the paper's artifact, requests that arrive in
the first 60 s do not count.
"""

from collections.abc import Callable, Mapping
from typing import Any

from configs.paper.setup import SYSTEMS, opt_13b, setting
from paxkv.reproduction.figure import Curves, Points
from paxkv.reproduction.found import Found

LIMIT_S = 0.5  # per output token
WARM_UP_S = 60.0
Value = Callable[[Found], float]


def trial(duration_s: float, num_rates: int) -> dict[str, Any]:
    """Of a figure whose runs are those of `panel`."""
    tree = opt_13b("sharegpt")
    tree["measure"]["from_s"] = WARM_UP_S
    tree["duration_s"] = duration_s
    tree["search"] = {
        "start_per_s": 1.0,
        "limit_s": LIMIT_S,
        "num_rates": num_rates,
        "step": 1.2,
    }
    return tree


def panel(
    name: str,
    model: str,
    workload: str,
    starts: Mapping[str, float],
    collective_latency_s: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Its runs, as choices of the axis "run".

    Args:
      starts: requests/s near the crossing, by system.
      collective_latency_s: None: that of the cost profile.
    """
    tree = setting(model, workload)
    hardware = {
        "chip": tree["hardware"]["chip"],
        "num_chips": tree["hardware"]["num_chips"],
        "collective_latency_s": collective_latency_s,
    }
    return {
        label(name, system): {
            "model": tree["model"],
            "hardware": hardware,
            "workload": {"lengths": tree["workload"]["lengths"]},
            "cache": {
                **SYSTEMS[system]["cache"],
                "num_blocks": tree["cache"]["num_blocks"],
            },
            "scheduler": SYSTEMS[system]["scheduler"],
            "search": {"start_per_s": start},
        }
        for system, start in starts.items()
    }


def label(panel: str, system: str) -> str:
    return f"{panel}, {system}"


def capacity(panel: str, system: str) -> Value:
    return lambda found: found("capacity_per_s", run=label(panel, system))


def ratio(panel: str, other: str) -> Value:
    """Of vLLM's capacity over another system's."""
    mine, others = capacity(panel, "vLLM"), capacity(panel, other)
    return lambda found: mine(found) / others(found)


def latency_curves(paper: Mapping[str, Points] | None = None) -> Curves:
    """Latency over rate, a line per run; `paper`: its points by run."""
    return Curves(
        x="rates_per_s",
        y="latencies_s",
        lines="run",
        paper=paper or {},
        x_label="requests/s",
        y_label="normalised latency, s a token",
    )
