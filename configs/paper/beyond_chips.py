"""R21: Llama-3 on six chips, serving the traces of R20 and ShareGPT's lengths to 64 users.

No published numbers of this model: all are bounds and assumptions. Ours, simulated, with
the assumed costs (`calibrated`) and without any loss (`ideal`) side by side: an H200 has
1.26 times an H100's tokens/s with the 8B (ideal: 1.40). On conversations they have 3,800
and 3,240, a TPU7x 6,150, a v5p 2,130, a v6e 2,060, 4 v5e 2,230; the 70B has 1,670 on 4
H100, 1,380 on 8 v6e, 1,130 on one 7x, 1,090 on 2 H200, 900 on 4 v5p, 790 on 16 v5e.

As many chips as hold the weights: the 70B takes 4 H100, 2 H200, 16 v5e, 4 v5p, 8 v6e, one
7x. TPUs have blocks of 64 tokens. 95 s on one CPU core; the traces as in R20.

Run: python -m experiments.paper --figure=r21
"""

from typing import Any

from configs import trial
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found
from paxkv.simulation.chips import CHIPS

MODELS = {"8B": "llama3_8b", "70B": "llama3_70b"}
NUM_CHIPS = {  # of the 8B and of the 70B
    "h100": (1, 4),
    "h200": (1, 2),
    "tpu_v5e": (4, 16),
    "tpu_v5p": (1, 4),
    "tpu_v6e": (1, 8),
    "tpu_7x": (1, 1),
}
METRICS = {
    "output tokens/s": "throughput_tokens_per_s",
    "TTFT p50, s": "latency.ttft_s.p50",
    "TPOT p50, s": "latency.tpot_s.p50",
}
WORKLOADS = {
    "conversations": ("trace", "data/AzureLLMInferenceTrace_conv.csv"),
    "code": ("trace", "data/AzureLLMInferenceTrace_code.csv"),
    "ShareGPT": ("single", None),
}
FASTER = "8B, ShareGPT: H200 over H100, tokens/s"
BELOW_PEAK = "code: largest share of the peak rate of products"


def get_figure() -> Figure:
    config = trial.get_config("llama3_8b,h100,vllm_v1,sharegpt").to_dict()
    config["workload"].update(
        num_requests=500, arrival="closed_loop", concurrency=64, too_long="clip"
    )
    systems = _systems()
    rows = [
        Check(
            name=f"{system}: {name}",
            ours=lambda found, system=system, path=path: found(
                path, system=system, workload="conversations"
            ),
        )
        for system in systems
        for name, path in METRICS.items()
    ]
    return Figure(
        row="R21",
        figure="r21",
        title="Six chips, two models",
        ran="64 users at once, 500 requests of each trace",
        runner="trace_replay",
        trial=config,
        grid={"system": tuple(systems), "workload": tuple(WORKLOADS)},
        choices={
            "system": systems,
            "workload": {
                name: {"workload": {"structure": structure, "trace_path": path}}
                for name, (structure, path) in WORKLOADS.items()
            },
        },
        seeds=(0,),  # of traces nothing is drawn
        profiles=("calibrated", "ideal"),
        checks=(
            Check(
                name=FASTER,
                ours=_h200_over_h100,
                unit="x",
                # more than nothing, and no more than the bandwidth of its memory gives
                band=(
                    1.02,
                    CHIPS["h200"].memory_bytes_per_s / CHIPS["h100"].memory_bytes_per_s,
                ),
            ),
            Check(
                name=BELOW_PEAK,
                ours=_largest_share_of_peak,
                band=(0.2, 0.55),  # the calibrated profile reaches 0.55 of it in products
            ),
            *rows,
        ),
        planted=_planted(),
        quick={
            "grid.system": (_label("8B", "h100"), _label("8B", "h200")),
            "workload.num_requests": 200,
            "grid.workload": ("ShareGPT", "code"),
        },
        notes=(
            "The ideal column is a bound: published rates and a host that costs nothing.",
        ),
    )


def _planted() -> tuple[Planted, ...]:
    return (
        Planted(
            name="an H200 is taken for an H100",
            overrides={"hardware.chip": "h100"},
            where={"system": (_label("8B", "h200"),), "workload": ("ShareGPT",)},
            rejected_by=(FASTER,),
        ),
        Planted(
            name="weights have one byte",
            overrides={"model.weights_dtype": "int8"},
            where={"system": (_label("8B", "h100"),), "workload": ("code",)},
            rejected_by=(BELOW_PEAK,),
        ),
    )


def _systems() -> dict[str, dict[str, Any]]:
    """A model on as many chips as it needs, by label."""
    return {
        _label(size, chip): {
            "model": trial.get_config(model).model.to_dict(),
            "hardware": {"chip": chip, "num_chips": NUM_CHIPS[chip][index]},
            "cache": {"block_size": 64 if chip.startswith("tpu") else 16},
        }
        for index, (size, model) in enumerate(MODELS.items())
        for chip in NUM_CHIPS
    }


def _label(size: str, chip: str) -> str:
    num_chips = NUM_CHIPS[chip][list(MODELS).index(size)]
    return f"{size}, {num_chips} x {chip}"


def _h200_over_h100(found: Found) -> float:
    path = METRICS["output tokens/s"]
    ours, theirs = (
        found(path, system=_label("8B", chip), workload="ShareGPT")
        for chip in ("h200", "h100")
    )
    return ours / theirs


def _largest_share_of_peak(found: Found) -> float:
    """Of any system: two operations per weight and token, over what its chips can do."""
    systems = _systems()

    def share(label: str, duration_s: float) -> float:
        def metric(path: str) -> float:
            return found(path, system=label, workload="code")

        model, hardware = systems[label]["model"], systems[label]["hardware"]
        num_tokens = metric("num_prefill_tokens") + metric("num_decode_tokens")
        peak = CHIPS[hardware["chip"]].bfloat16_flops_per_s * hardware["num_chips"]
        return 2 * model["num_parameters"] * num_tokens / (duration_s * peak)

    durations_s = found.each("duration_s", "system", workload="code")
    return max(share(label, duration_s) for label, duration_s in durations_s.items())
