"""R19: chunks of prompts keep the time between tokens short; how large should they be?

Published: 2.6 times the capacity under a limit on the time between tokens (Sarathi-Serve,
arXiv 2403.02310: Mistral-7B on an A100, limits of its own), at budgets of 512 to 2,048
tokens a step. Ours, simulated, Llama-3-8B on an H100: the p99 of the
time between tokens falls to a fifth with 512 tokens a step, and capacity grows 2.6 times
(4.7 requests/s to 12.3); budgets of 256, 1,024 and 2,048 have 10.5, 13.3 and 13.9.

Capacity is the rate at which the p99 of the time between tokens crosses 0.1 s or the median
wait in the queue 2 s. 150 s on one CPU core.

Run: python -m experiments.paper --figure=r19
"""

from typing import Any

from configs import trial
from paxkv.analysis.capacity import first_crossing
from paxkv.reproduction.figure import Check, Curves, Figure, Planted
from paxkv.reproduction.found import Found

WHOLE = "whole prompts"
BUDGETS = (256, 512, 1_024, 2_048)
RATES_PER_S = (2.0, 5.0, 8.0, 11.0, 14.0)
RATE_PER_S = 5.0  # where times between tokens are compared
LIMITS_S = {"latency.itl_s.p99": 0.1, "latency.queue_s.p50": 2.0}
FALLS = "p99 of the time between tokens, whole prompts over budget 512"
GROWS = "its least growth with the budget, 256 to 2,048"
MORE = "capacity, budget 512 over whole prompts"


def get_figure() -> Figure:
    config = trial.get_config("llama3_8b,h100,vllm_v1").to_dict()
    config["workload"].update(
        num_requests=400,
        lengths="lognormal",
        input_tokens=2_000,
        output_tokens=200,
        too_long="clip",
    )
    return Figure(
        row="R19",
        figure="r19",
        title="Chunked prefill: time between tokens and capacity",
        ran="Llama-3-8B, H100, 2,000 tokens in and 200 out, 2 to 14 requests/s",
        runner="simulate",
        trial=config,
        grid={
            "prefill": (WHOLE, *map(_name, BUDGETS)),
            "workload": {"rate_per_s": RATES_PER_S},
        },
        choices={
            "prefill": {
                WHOLE: _prefill(False, 8_192),  # the context: a prompt must fit
                **{_name(budget): _prefill(True, budget) for budget in BUDGETS},
            }
        },
        checks=_checks(),
        planted=_planted(),
        quick={
            "grid.prefill": (WHOLE, _name(512)),
            "grid.workload.rate_per_s": (RATE_PER_S,),
        },
        curves=Curves(
            x="rate_per_s",
            y="latency.itl_s.p99",
            lines="prefill",
            x_label="requests/s",
            y_label="time between tokens, p99 (s)",
            log_y=True,
        ),
        notes=(
            "The bands are ours; 2.6 is of another model, chip and limit.",
            "Where no limit is crossed up to 14 requests/s, 14 counts as the capacity: for "
            "budgets of 512, 1,024 and 2,048 at seed 1, and of 2,048 at seed 2. There the "
            "ratio to whole prompts, whose capacity was always found, is a lower bound.",
            "Traces of 400 requests let queues grow for half a minute only, so capacities "
            "are on the high side.",
        ),
    )


def _checks() -> tuple[Check, ...]:
    return (
        Check(
            name=FALLS,
            ours=lambda found: _gap_s(found, WHOLE) / _gap_s(found, _name(512)),
            unit="x",
            band=(2.0, None),
        ),
        Check(
            name=GROWS,
            ours=_least_growth,
            unit="x",
            band=(1.1, None),
            full_only=True,
        ),
        Check(
            name=MORE,
            ours=lambda found: (
                _capacity_per_s(found, _name(512)) / _capacity_per_s(found, WHOLE)
            ),
            unit="x",
            paper=2.6,
            band=(1.2, None),
            full_only=True,
        ),
        *(_capacity(prefill) for prefill in (WHOLE, *map(_name, BUDGETS))),
    )


def _planted() -> tuple[Planted, ...]:
    return (
        Planted(
            name="prompts are not cut",
            overrides={
                "scheduler.chunked_prefill": False,
                "scheduler.max_num_batched_tokens": 8_192,
            },
            where={"prefill": tuple(map(_name, BUDGETS))},
            rejected_by=(FALLS, GROWS, MORE),
        ),
    )


def _name(budget: int) -> str:
    return f"budget {budget:,}"


def _prefill(is_chunked: bool, budget: int) -> dict[str, Any]:
    return {"scheduler": {"chunked_prefill": is_chunked, "max_num_batched_tokens": budget}}


def _capacity(prefill: str) -> Check:
    return Check(
        name=f"capacity ({RATES_PER_S[-1]:g}: or more), {prefill}",
        ours=lambda found: _capacity_per_s(found, prefill),
        unit="requests/s",
        full_only=True,
    )


def _gap_s(found: Found, prefill: str) -> float:
    return found("latency.itl_s.p99", prefill=prefill, rate_per_s=RATE_PER_S)


def _least_growth(found: Found) -> float:
    gaps_s = [_gap_s(found, _name(budget)) for budget in BUDGETS]
    return min(after / before for before, after in zip(gaps_s, gaps_s[1:], strict=False))


def _capacity_per_s(found: Found, prefill: str) -> float:
    """The first limit that is crossed says; the largest rate if none is."""
    crossings = []
    for path, limit_s in LIMITS_S.items():
        by_rate = found.each(path, "rate_per_s", prefill=prefill)
        crossings.append(first_crossing(list(by_rate), list(by_rate.values()), limit_s))
    return min((rate for rate in crossings if rate is not None), default=RATES_PER_S[-1])
