"""R20: Azure's conversations and code completions at one to four times their rate.

Published: the traces, of November 2023 (Splitwise, Patel et al., ISCA 2024), but no
latencies of this model and chip. Ours, simulated, Llama-3-8B on an H100: at their own
rate TTFT p50/p99 is 0.04/0.21 s (conversations) and 0.69/9.7 s (code, whose arrivals are
bursts), TPOT p50 11 and 67 ms; at four times it TTFT p99 is 17 and 26 s. Nobody is
preempted: 256 sequences, the limit, never fill the cache.

The traces are not shipped: configs/workloads/azure_*.py say where they are; PAXKV_TRACES
names their folder. 60 s on one CPU core.

Run: python -m experiments.paper --figure=r20
"""

from configs import trial
from paxkv.reproduction.figure import Check, Curves, Figure, Planted
from paxkv.reproduction.found import Found

TRACES = {
    "conversations": "data/AzureLLMInferenceTrace_conv.csv",
    "code": "data/AzureLLMInferenceTrace_code.csv",
}
SCALES = (1.0, 2.0, 4.0)
NUM_REQUESTS = 1_500
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}
SERVED = "{}: requests served"
GROWS = "{}: p90 of TTFT, fourfold rate over the trace's"


def get_figure() -> Figure:
    config = trial.get_config("llama3_8b,h100,vllm_v1,azure_conversation").to_dict()
    config["workload"]["num_requests"] = NUM_REQUESTS
    verdicts = [check for name in TRACES for check in _checks(name)]
    return Figure(
        row="R20",
        figure="r20",
        title="Azure's traces at one to four times their rate",
        ran=f"Llama-3-8B, H100, the first {NUM_REQUESTS:,} requests of each trace",
        runner="trace_replay",
        trial=config,
        grid={"trace": tuple(TRACES), "workload": {"rate_scale": SCALES}},
        choices={
            "trace": {name: {"workload.trace_path": path} for name, path in TRACES.items()}
        },
        seeds=(0,),  # nothing is drawn
        checks=(*verdicts, *(one for name in TRACES for one in _reports(name))),
        planted=(
            Planted(
                name="a small pool, and who does not fit is refused",
                overrides={"scheduler.pressure": "reject", "cache.num_blocks": 1_001},
                rejected_by=tuple(SERVED.format(name) for name in TRACES),
            ),
            Planted(
                name="the rate is not scaled",
                overrides={"workload.rate_scale": 1.0},
                where={"workload.rate_scale": SCALES[1:]},
                rejected_by=tuple(GROWS.format(name) for name in TRACES),
            ),
        ),
        quick={"workload.num_requests": 600, "grid.workload.rate_scale": (1.0, 4.0)},
        quick_plants=False,
        curves=Curves(
            x="rate_scale",
            y="latency.ttft_s.p90",
            lines="trace",
            x_label="rate over that of the trace",
            y_label="TTFT, p90 (s)",
            log_y=True,
        ),
        notes=(
            "The calibrated costs of an H100 are assumed, so what is judged is only that "
            "nothing is lost and that load shows.",
        ),
    )


def _checks(name: str) -> list[Check]:
    def grows(found: Found) -> float:
        by_scale = found.each("latency.ttft_s.p90", "rate_scale", trace=name)
        return by_scale[SCALES[-1]] / by_scale[SCALES[0]]

    return [
        Check(
            name=SERVED.format(name),
            ours=lambda found: min(
                100 * num_finished / found("num_requests", trace=name, rate_scale=scale)
                for scale, num_finished in found.each(
                    "num_finished", "rate_scale", trace=name
                ).items()
            ),
            unit="%",
            band=(100.0, 100.0),
        ),
        Check(name=GROWS.format(name), ours=grows, unit="x", band=(1.5, None)),
    ]


def _reports(name: str) -> list[Check]:
    """At the trace's own rate and at the largest."""

    def value(scale: float, path: str, label: str, unit: str) -> Check:
        return Check(
            name=f"{name} x {scale:.0f}: {label}",
            ours=lambda found: found(path, trace=name, rate_scale=scale),
            unit=unit,
        )

    return [
        one
        for scale in (SCALES[0], SCALES[-1])
        for one in (
            *(
                value(scale, f"latency.{latency}.{percent}", f"{title} {percent}", "s")
                for latency, title in LATENCIES.items()
                for percent in ("p50", "p90", "p99")
            ),
            value(scale, "num_preemptions", "preemptions", ""),
        )
    ]
