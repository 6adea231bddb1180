"""Figure 11: lengths of prompts and outputs, in tokens.

Paper (printed): means of 161.31 and 337.99 (ShareGPT), 19.31 and 58.45 (Alpaca), so
ShareGPT's are 8.4 and 5.8 times as long. The tails are those of the lengths that come with
its artifact.
Ours, computed from 100,000 pairs of each: 160.16 and 333.64, 19.30 and 58.59; 8.3 and 5.7.
Hardware: none. Time: a second.

Run: python -m experiments.paper --figure=11
"""

from collections.abc import Callable, Sequence

from configs.paper.setup import opt_13b
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

MEANS = {  # of prompts and outputs, and how far ours may be off: EVAL 3.2 and R4
    ("ShareGPT", "input"): (161.31, 0.05),
    ("ShareGPT", "output"): (337.99, 0.03),
    ("Alpaca", "input"): (19.31, 0.05),
    ("Alpaca", "output"): (58.45, 0.05),
}
RATIOS = {"input": (8.4, 0.05), "output": (5.8, 0.05)}  # ShareGPT over Alpaca
P95 = {"input": (863.0, 0.10), "output": (899.0, 0.05)}  # of ShareGPT
PARTS = {"input": "prompts", "output": "outputs"}
CONTEXT = 2048  # tokens; all pairs of ShareGPT are shorter


def get_figure() -> Figure:
    checks = _checks()
    return Figure(
        row="R4",
        figure="11",
        title="Lengths of prompts and outputs",
        ran="100,000 pairs of each generator",
        runner="lengths",
        trial={**opt_13b("sharegpt"), "num_pairs": 100_000},
        grid={"workload.lengths": ("sharegpt", "alpaca")},
        checks=checks,
        planted=_planted([check.name for check in checks]),
        notes=(
            "In-sample by construction: ShareGPT's lengths are drawn from the quantiles of "
            "the artifact's, Alpaca's have the printed means as parameters.",
        ),
    )


def _checks() -> tuple[Check, ...]:
    return (
        *(
            _check(f"{data}: mean of {PARTS[part]}", *target, _metric(data, part, "mean"))
            for (data, part), target in MEANS.items()
        ),
        *(
            _check(f"ShareGPT / Alpaca: mean of {PARTS[part]}", *target, _ratio(part))
            for part, target in RATIOS.items()
        ),
        *(
            _check(
                f"ShareGPT: p95 of {PARTS[part]}", *target, _metric("ShareGPT", part, "p95")
            )
            for part, target in P95.items()
        ),
        Check(
            name="ShareGPT: longest pair",
            ours=lambda found: found("longest", lengths="sharegpt"),
            unit="tokens",
            paper=f"< {CONTEXT}",
            band=(None, CONTEXT - 1),
            sample="in",
        ),
    )


def _planted(names: Sequence[str]) -> tuple[Planted, ...]:
    return (
        Planted(
            name="log-normal lengths with the means of all pairs",
            # of the artifact, those beyond the context too; deviations of their logs
            overrides={
                "workload.lengths": "lognormal",
                "workload.too_long": "clip",  # nothing is: "scale" is refused here
                "workload.input_tokens": 296,
                "workload.output_tokens": 358,
                "workload.input_sigma": 1.5,
                "workload.output_sigma": 1.1,
            },
            where={"workload.lengths": ("sharegpt",)},
            rejected_by=tuple(name for name in names if "ShareGPT:" in name),
        ),
        Planted(
            name="medians for means, and no frame around Alpaca's prompts",
            overrides={
                "workload.lengths": "lognormal",
                "workload.too_long": "clip",  # nothing is: "scale" is refused here
                "workload.input_tokens": 13,
                "workload.output_tokens": 39,
                "workload.input_sigma": 0.6,
                "workload.output_sigma": 0.9,
            },
            where={"workload.lengths": ("alpaca",)},
            rejected_by=tuple(name for name in names if "Alpaca" in name),
        ),
    )


def _metric(data: str, part: str, statistic: str) -> Callable[[Found], float]:
    return lambda found: found(f"{part}.{statistic}", lengths=data.lower())


def _ratio(part: str) -> Callable[[Found], float]:
    sharegpt, alpaca = (_metric(data, part, "mean") for data in ("ShareGPT", "Alpaca"))
    return lambda found: sharegpt(found) / alpaca(found)


def _check(
    name: str, paper: float, tolerance: float, ours: Callable[[Found], float]
) -> Check:
    """Within a share of the paper's number."""
    return Check(
        name=name,
        ours=ours,
        unit="" if "/" in name else "tokens",
        paper=paper,
        band=((1 - tolerance) * paper, (1 + tolerance) * paper),
        sample="in",
    )
