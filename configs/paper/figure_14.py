"""Figure 14: what parallel sampling and beam search gain, OPT-13B on Alpaca.

Paper (text): vLLM sustains 1.3 times the rate of Orca (Oracle) with one sample, 2.3 times
with 6 beams; the gain grows with the number of samples.
Ours (simulated, A100-40, three seeds, traces of 100 s): 1.34, 1.39, 1.35 with 2, 4, 6
samples; 1.45, 1.68, 1.79 with as many beams. Beams gain more than samples and rise; 6 beams
are just below their band, and samples do not rise: causes are with the checks. 24 minutes
of one core.

Run: python -m experiments.paper --figure=14
"""

from dataclasses import replace
from typing import Any

from configs.paper.setup import NO_SHARING, SYSTEMS, opt_13b
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

WIDTHS = (2, 4, 6)
KINDS = ("parallel", "beam")
# requests/s a little below where each crosses, by kind, for 2, 4 and 6 samples or beams
STARTS = {
    ("vLLM", "parallel"): (18.2, 8.9, 5.75),
    ("vLLM", "beam"): (19.3, 10.4, 7.0),
    ("Orca (Oracle)", "parallel"): (13.9, 7.2, 4.6),
    ("Orca (Oracle)", "beam"): (13.9, 7.0, 4.5),
}
SIX_BEAMS = (
    "the profile's 0.22 ms a sequence and step on the host were fitted to requests of one "
    "sequence; charged to 545 beams they make a step last 0.13 s, and vLLM, which runs "
    "more beams, pays more. At seed 0 the ratio is 1.60, and 1.81 with 0.03 ms (figure "
    "14_host); over the seeds it is just below the band. Even the rates at which the "
    "artifact's lists end are a ratio of 1.89"
)
SAMPLES_DO_NOT_RISE = (
    "the gain is flat. A request is admitted with the blocks of one prompt, then all its "
    "samples grow: near the crossing (seed 0) a sequence is preempted 0.4, 1.4 and 2.4 "
    "times with 2, 4 and 6 samples. If vLLM kept 25 % of its blocks free at admission in "
    "place of 1 %, 6 samples at 6.3 requests/s would take 0.32 s a token, not 0.55. "
    "The artifact's own rates do not rise from 2 to 4 samples either"
)


def get_figure() -> Figure:
    samples_rise, beams_rise = (_rise(kind) for kind in KINDS)
    samples_rise = replace(samples_rise, fails_because=SAMPLES_DO_NOT_RISE)
    lead = Check(
        name="beam over parallel, smallest lead",
        ours=lambda found: min(
            ratio(found, "beam", width) - ratio(found, "parallel", width)
            for width in WIDTHS
        ),
        band=(0.0, None),
        full_only=True,
    )
    ratios = tuple(ratio_check(kind, width) for kind in KINDS for width in WIDTHS)
    six_beams = replace(
        ratios[-1], paper=2.3, band=(1.8, 2.8), fails_because=SIX_BEAMS, full_only=True
    )
    return Figure(
        row="R9",
        figure="14",
        title="Parallel sampling and beam search: capacity of vLLM over Orca (Oracle)",
        ran="OPT-13B, A100-40, Alpaca for 100 s, 0.5 s/token from 50 s on",
        runner="capacity",
        trial=trial(),
        grid={"run": tuple(RUNS)},
        choices={"run": RUNS},
        checks=(*ratios[:-1], six_beams, samples_rise, beams_rise, lead),
        planted=(
            Planted(
                name="beams that share nothing",
                overrides=NO_SHARING,
                where={"run": (label("vLLM", "beam", 6),)},
                rejected_by=(six_beams.name, beams_rise.name, lead.name),
            ),
            Planted(
                name="samples that share nothing",
                overrides=NO_SHARING,
                where={"run": (label("vLLM", "parallel", 6),)},
                rejected_by=(samples_rise.name,),
            ),
        ),
        notes=(
            "The artifact's own lists of rates end at 20 and 14, 12 and 9, 9 and 6 "
            "requests/s (vLLM and Oracle; 2, 4, 6 samples) and at 19 and 11, 11 and 6, 8.5 "
            "and 4.5 (beams): ratios of 1.43, 1.33, 1.5 and 1.73, 1.83, 1.89. They do not "
            "reach 2.3, and those of samples do not rise from 2 to 4.",
            "The host's time of a sequence was fitted to requests of one (figures 12a and "
            "13) and is charged to each sample and beam; figure 14_host has a lower one.",
            "Traces last 100 s. Capacities of 240 s were 5 to 8 % lower than of 120 s.",
            "Which beams go on is drawn here, not decided by a model: sharing saves 76 % "
            "of 6 beams' blocks in an overload; with a real model, see figure 15_cpu.",
        ),
        quick={
            "grid.run": tuple(
                label(system, "parallel", 6) for system, _ in list(STARTS)[::2]
            ),
            "duration_s": 60.0,
            "measure.from_s": 20.0,
        },
        quick_plants=False,
        long={"duration_s": 3600.0},
    )


def trial() -> dict[str, Any]:
    tree = opt_13b("alpaca")
    tree["measure"]["from_s"] = 50.0
    tree["duration_s"] = 100.0
    tree["search"] = {"start_per_s": 1.0, "limit_s": 0.5, "num_rates": 4, "step": 1.15}
    return tree


def label(system: str, kind: str, width: int) -> str:
    return f"{system}, {kind} {width}"


def run(system: str, kind: str, width: int, start_per_s: float) -> dict[str, Any]:
    """A choice of the axis "run": a search from a rate."""
    return {
        **SYSTEMS[system],
        "workload": {"num_samples": width, "use_beam_search": kind == "beam"},
        "search": {"start_per_s": start_per_s},
    }


RUNS = {
    label(system, kind, width): run(system, kind, width, start)
    for (system, kind), starts in STARTS.items()
    for width, start in zip(WIDTHS, starts, strict=True)
}


def ratio(found: Found, kind: str, width: int) -> float:
    """Of capacities."""
    vllm, orca = (
        found("capacity_per_s", run=label(system, kind, width))
        for system in ("vLLM", "Orca (Oracle)")
    )
    return vllm / orca


def ratio_check(kind: str, width: int) -> Check:
    return Check(
        name=f"{kind} {width}", ours=lambda found: ratio(found, kind, width), unit="x"
    )


def _rise(kind: str) -> Check:
    """How much the ratio grows from one width to the next, where it does least."""

    def ours(found: Found) -> float:
        two, four, six = (ratio(found, kind, width) for width in WIDTHS)
        return min(four - two, six - four)

    return Check(
        name=f"{kind}: smallest rise with the samples",
        ours=ours,
        band=(0.0, None),
        full_only=True,
    )
