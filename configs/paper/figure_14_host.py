"""Figure 14 with a cheaper host: how much its ratios depend on one number of the costs.

The profile's host takes 0.22 ms a step for each sequence. That was fitted to requests of
one sequence (figures 12a and 13); charged to each of some 500 beams, a step takes 0.13 s,
and the system that runs more of them pays for it. Here it is 0.03 ms: chosen to show the
dependence, fitted to nothing, so it has no band.

Paper (text): a ratio of 2.3 with 6 beams.
Ours (simulated, A100-40, seed 0): 1.33 with 6 samples, 1.81 with 6 beams (1.60 with
0.22 ms). 3 minutes of one core.

Run: python -m experiments.paper --figure=14_host
"""

from configs.paper import figure_14
from paxkv.reproduction.figure import Figure

STARTS = {  # requests/s a little below where each crosses, with six samples or beams
    ("vLLM", "parallel"): 9.2,
    ("vLLM", "beam"): 11.4,
    ("Orca (Oracle)", "parallel"): 6.8,
    ("Orca (Oracle)", "beam"): 6.5,
}
RUNS = {
    figure_14.label(system, kind, 6): figure_14.run(system, kind, 6, start)
    for (system, kind), start in STARTS.items()
}


def get_figure() -> Figure:
    trial = figure_14.trial()
    trial["hardware"]["host_s_per_seq"] = 3e-5
    return Figure(
        row="R9",
        figure="14_host",
        title="Parallel sampling and beam search with a cheaper host",
        ran="as figure 14, with 0.03 ms a sequence and step on the host for 0.22 ms",
        runner="capacity",
        trial=trial,
        grid={"run": tuple(RUNS)},
        choices={"run": RUNS},
        seeds=(0,),
        checks=tuple(figure_14.ratio_check(kind, 6) for kind in figure_14.KINDS),
        notes=("No band: 0.03 ms is chosen, to show how much depends on it.",),
        quick={
            "grid.run": tuple(
                figure_14.label(system, "parallel", 6) for system, _ in list(STARTS)[::2]
            ),
            "duration_s": 60.0,
            "measure.from_s": 20.0,
        },
        long={"duration_s": 3600.0},
    )
