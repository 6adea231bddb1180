"""The same policy (vLLM V1) and workload on today's chips.

A chip's number is the smallest power of two whose memory, beside the weights, has a fifth
left for the cache. One user at a time shows latency, 256 at once throughput. The limits of
vLLM V1 are those of a GPU below 70 GiB on all of them. Ours, simulated, 8B: from 547 (v5e)
to 6,720 (7x) output tokens a second and chip. 3 minutes, on two shared cores.

Run: python -m experiments.since_2023
"""

from collections.abc import Callable
from typing import Any

from configs.since_2023.setup import preset, setting
from paxkv.reproduction.figure import Figure
from paxkv.reproduction.found import Found
from paxkv.reproduction.since_page import Column, Section

GROUP = "Today's chips"
CHIPS = {  # of 8B and of 70B
    "H100": ("h100", 1, 4),
    "H200": ("h200", 1, 2),
    "TPU v5e": ("tpu_v5e", 2, 16),
    "TPU v5p": ("tpu_v5p", 1, 2),
    "TPU v6e": ("tpu_v6e", 1, 8),
    "TPU 7x": ("tpu_7x", 1, 1),
}
USERS = {"1 user": 1, "256 users": 256}  # at once; who is done asks again
ENDLESS = 100_000  # requests; a run stops before
TIMES_S = {"llama3_8b": (20.0, 60.0), "llama3_70b": (100.0, 300.0)}  # measured: from, to
FINDINGS = {
    "llama3_8b": (
        "A chip decodes from {worst:,.0f} (v5e) to {best:,.0f} (7x) tokens a second for "
        "256 users. Where the cache is small, memory is still what is short, as it was in "
        "2023: the {v5e:,.0f} tokens of two v5e let {v5e_running:.0f} of the 256 run, and "
        "requests are preempted in {v5e_preempted:.0f} steps; one H200 has room for "
        "{h200:,.0f} and runs all."
    ),
    "llama3_70b": (
        "By chip, from {worst:,.0f} (v5e) to {best:,.0f} (7x) tokens a second. Chips that "
        "hold little more than the weights are short of memory again: 16 v5e run "
        "{v5e_running:.0f} of the 256 and preempt in {v5e_preempted:.0f} steps, two H200 "
        "with {h200:,.0f} tokens run all."
    ),
}


def get_sections() -> tuple[Section, ...]:
    return _section("llama3_8b", "Llama-3-8B", 0), _section("llama3_70b", "Llama-3-70B", 1)


def _section(model: str, name: str, place: int) -> Section:
    chips = {
        f"{numbers[place]} x {label}": {
            "hardware": {"chip": chip, "num_chips": numbers[place]}
        }
        for label, (chip, *numbers) in CHIPS.items()
    }
    users = {
        label: {"workload": {"concurrency": concurrency}}
        for label, concurrency in USERS.items()
    }
    figure = Figure(
        row="chips",
        figure=f"chips {model}",
        title=name,
        ran="vLLM V1's policy, Azure conversation's lengths, 1 and 256 users who ask again "
        "at once, from {:g} to {:g} s".format(*TIMES_S[model]),
        runner="simulate",
        trial=_trial(model),
        grid={"chips": tuple(chips), "users": tuple(users)},
        choices={"chips": chips, "users": users},
        seeds=(0,),
        quick={
            "grid.users": tuple(users)[:1],
            "stop_at_s": TIMES_S[model][1] / 4,
            "measure.from_s": 0.0,
            "measure.until_s": TIMES_S[model][1] / 4,
        },
    )
    return Section(
        group=GROUP,
        figure=figure,
        rows=("chips",),
        columns=_columns(model),
        finding=FINDINGS[model],
        numbers=_numbers(model, tuple(chips)),
    )


def _trial(model: str) -> dict[str, Any]:
    chip = {"llama3_8b": "h100", "llama3_70b": "h200"}[model]
    tree = setting("Azure conversation", model, chip)
    tree["hardware"]["kv_bytes"] = None  # what the weights leave
    tree["workload"].update(arrival="closed_loop", num_requests=ENDLESS)
    from_s, until_s = TIMES_S[model]
    tree["measure"].update(from_s=from_s, until_s=until_s)
    tree["stop_at_s"] = until_s
    return {**tree, **preset("vllm_v1")}


def _alone(path: str):
    return lambda found: found(path, users="1 user")


def _together(path: str, **labels: Any):
    return lambda found: found(path, users="256 users", **labels)


def _throughput(model: str) -> Callable[[Found], float]:
    """Output tokens a second after the first of each request, of what is measured."""
    from_s, until_s = TIMES_S[model]
    return lambda found: _together("num_decode_tokens")(found) / (until_s - from_s)


def _per_chip(model: str) -> Callable[[Found], float]:
    def rate(found: Found) -> float:
        num_chips = [int(str(run.labels["chips"]).split()[0]) for run in found.runs]
        return _throughput(model)(found) / num_chips[0]

    return rate


def _columns(model: str) -> tuple[Column, ...]:
    return (
        Column(name="cache, tokens", ours=_alone("pool.positions"), digits=0),
        Column(name="1 user: TTFT p50, s", ours=_alone("latency.ttft_s.p50"), digits=3),
        Column(name="TPOT p50, s", ours=_alone("latency.tpot_s.p50"), digits=4),
        Column(name="256 users: tokens/s", ours=_throughput(model), digits=0),
        Column(name="tokens/s a chip", ours=_per_chip(model), digits=0, is_drawn=True),
        Column(name="TTFT p50, s", ours=_together("latency.ttft_s.p50")),
        Column(name="TPOT p50, s", ours=_together("latency.tpot_s.p50"), digits=3),
        Column(name="running", ours=_together("running_mean"), digits=0),
        Column(name="steps that preempt", ours=_together("num_preempting_steps"), digits=0),
    )


def _numbers(model: str, chips: tuple[str, ...]) -> dict[str, Any]:
    v5e = next(label for label in chips if "v5e" in label)
    h200 = next(label for label in chips if "H200" in label)

    def of_chips(found: Found) -> list[float]:
        return [
            _per_chip(model)(
                Found([run for run in found.runs if run.labels["chips"] == label])
            )
            for label in chips
        ]

    return {
        "worst": lambda found: min(of_chips(found)),
        "best": lambda found: max(of_chips(found)),
        "v5e": _together("pool.positions", chips=v5e),
        "v5e_running": _together("running_mean", chips=v5e),
        "v5e_preempted": _together("num_preempting_steps", chips=v5e),
        "h200": _together("pool.positions", chips=h200),
    }
