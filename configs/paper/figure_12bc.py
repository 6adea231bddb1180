"""Figures 12b and 12c: OPT-66B on four A100-40 and OPT-175B on eight A100-80, ShareGPT.

Paper (text, over all ShareGPT panels): vLLM sustains 1.7 to 2.7 times the rates of Orca
(Oracle) and 2.7 to 8 times those of Orca (Max). The artifact's lists of rates, which end
just past saturation, end at 1.0, 0.5 and 0.3 requests/s (vLLM, Oracle, Max) for OPT-66B
and at 3.0, 1.8 and 1.25 for OPT-175B, so these are 2.0, 3.3 and 1.7, 2.4 times there.

Ours, simulated on one CPU core (three seeds): 1.36, 0.64 and 0.32 requests/s for OPT-66B,
2.13 and 4.23 times; 3.35, 2.59 and 1.77 for OPT-175B, 1.30 and 1.90 times, which is below
the bands. With 120 us a collective in place of 20: 1.06, 0.47, 0.23 and 2.92, 2.03, 1.28,
that is 2.24, 4.58 and 1.45, 2.28 times. 12 s with --quick, 17 minutes in full.

Run: python -m experiments.paper --figure=12bc
"""

from typing import Any

from configs.paper import rates
from paxkv.reproduction.figure import Check, Figure, Planted

SYSTEMS = ("Orca (Max)", "Orca (Oracle)", "vLLM")
ENDS = {"12b": (0.3, 0.5, 1.0), "12c": (1.25, 1.8, 3.0)}  # of the artifact's lists
BANDS = {"Orca (Oracle)": (1.4, 3.0), "Orca (Max)": (2.4, 9.0)}
PAPER = {"Orca (Oracle)": "1.7-2.7", "Orca (Max)": "2.7-8"}
SLOW = ", 120 us a collective"
SLOW_S = 120e-6  # read off the ends of those lists
WHY = (
    "our steps on eight chips are probably too short, which helps Orca most: it runs few "
    "sequences a step. The cost profile was fitted to one chip and assumes 20 us a "
    "collective. With 120 us, a number read off the ends of the artifact's lists, "
    "capacities come near these ends, and the ratios of 12c rise towards those of the "
    "ends, 1.7 and 2.4 (rows with 120 us), though that over Max stays below its band. "
    "Whether collectives took that time, or launches, or processes that "
    "wait for each other, the paper does not tell"
)
FAILS = {("12c", "Orca (Oracle)"): WHY, ("12c", "Orca (Max)"): WHY}


def get_figure() -> Figure:
    runs = {
        **rates.panel("12b", "opt_66b", "sharegpt", _starts(0.3, 0.68, 1.33)),
        **rates.panel("12c", "opt_175b", "sharegpt", _starts(1.7, 2.45, 3.3)),
        **_slow_panel("12b", "opt_66b", _starts(0.26, 0.48, 1.0)),
        **_slow_panel("12c", "opt_175b", _starts(1.3, 1.9, 2.9)),
    }
    checks = tuple(_ratio(panel, other) for panel in ENDS for other in BANDS)
    slow = tuple(_slow_ratio(panel, other) for panel in ENDS for other in BANDS)
    return Figure(
        row="R6",
        figure="12bc",
        parts=("12b", "12c"),
        title="Latency over request rate, OPT-66B and OPT-175B on ShareGPT",
        ran="4 x A100-40 and 8 x A100-80, traces of 900 s around the crossing of 0.5 s a "
        "token",
        runner="capacity",
        trial=rates.trial(duration_s=900.0, num_rates=3),
        grid={"run": tuple(runs)},
        choices={"run": runs},
        checks=(
            *checks,
            *slow,
            *(
                _capacity(panel, system, end, of)
                for of in ("", SLOW)
                for panel, ends in ENDS.items()
                for system, end in zip(SYSTEMS, ends, strict=True)
            ),
        ),
        planted=(
            Planted(
                name="request-level batches",
                overrides={"scheduler.batching": "request", "search.start_per_s": 0.21},
                where={"run": tuple(rates.label(panel, "vLLM") for panel in ENDS)},
                rejected_by=tuple(check.name for check in checks),
            ),
        ),
        quick={
            "duration_s": 300.0,
            "search.num_rates": 3,
            "grid.run": tuple(rates.label("12b", system) for system in SYSTEMS),
        },
        quick_plants=False,
        long={"duration_s": 3600.0},
        curves=rates.latency_curves(),
        notes=(
            "The paper's traces are of an hour, and of 15 minutes for OPT-175B; here both "
            "are of 15 minutes. Orca (Pow2) is left out.",
        ),
    )


def _starts(*per_s: float) -> dict[str, float]:
    return dict(zip(SYSTEMS, per_s, strict=True))


def _slow_panel(panel: str, model: str, starts: dict[str, float]) -> dict[str, Any]:
    return rates.panel(panel + SLOW, model, "sharegpt", starts, SLOW_S)


def _ratio(panel: str, other: str) -> Check:
    return Check(
        name=f"{panel}: vLLM over {other}",
        ours=rates.ratio(panel, other),
        unit="x",
        paper=PAPER[other],
        band=BANDS[other],
        fails_because=FAILS.get((panel, other)),
        full_only=panel == "12c",
    )


def _slow_ratio(panel: str, other: str) -> Check:
    return Check(
        name=f"{panel}{SLOW}: vLLM over {other}",
        ours=rates.ratio(panel + SLOW, other),
        unit="x",
        paper=PAPER[other],
        sample="in",
        full_only=True,
    )


def _capacity(panel: str, system: str, end: float, of: str) -> Check:
    return Check(
        name=f"{panel}{of}: capacity of {system}",
        ours=rates.capacity(panel + of, system),
        unit="requests/s",
        paper=f"artifact: < {end:g}",
        sample="in" if of else "out",
        full_only=True,
    )
