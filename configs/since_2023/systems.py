"""Today's systems' policies as a whole, beside the scheduler of 2023.

The presets of configs/systems: re-implementations of policies, not those programs, so a
row says what the policy does, and nothing of the program's kernels or its speed. Ours,
simulated, Llama-3-8B on one H100, Mooncake's shape: the median TTFT is 0.43 (vLLM V1), 0.35
(SGLang) and 0.43 (TensorRT-LLM) of that of 2023. 6 minutes, on two shared cores.

Run: python -m experiments.since_2023
"""

from collections.abc import Callable
from typing import Any

from configs.since_2023.setup import LONG, measured, preset, setting
from paxkv.reproduction.figure import Figure
from paxkv.reproduction.found import Found
from paxkv.reproduction.since_page import Column, Section
from paxkv.sweeps.grid import complete

GROUP = "Today's systems"
MODELS = {
    "8B, 1 x H100": ("llama3_8b", "h100"),
    "70B, 2 x H200": ("llama3_70b", "h200"),
}
# arrivals a second of both models, a little below what the base can serve; trace and from
# when it counts (s)
LOADS = {
    "ShareGPT": ((45.0, 9.0), 60.0, 15.0),
    "Azure conversation": ((16.0, 3.2), 80.0, 15.0),
    "Mooncake": ((0.5, 0.1), 300.0, 40.0),
}
FINDINGS = {
    "ShareGPT": (
        "Short prompts that share nothing: the medians hardly differ. The 99th percentile "
        "of gaps is {vllm:.2f} (vLLM V1), {sglang:.2f} (SGLang) and {trtllm:.2f} "
        "(TensorRT-LLM) of that of 2023. What costs is to reserve all that up to "
        "{running:.0f} running requests will become: without eviction, the 99th "
        "percentile of TTFT is {reserved:.2f} s, with it {evicted:.2f} s."
    ),
    "Azure conversation": (
        "No prompt is longer than the 8,192 tokens that a step of vLLM V1 has on such a "
        "GPU, so it cuts few: the 99th percentile of gaps is {vllm:.2f} of that of 2023, "
        "where chunks of 2,048 (above) change it. SGLang computes prompts in steps of "
        "their own ({sglang:.2f}), TensorRT-LLM whole ({trtllm:.2f})."
    ),
    "Mooncake": (
        "The median TTFT is {vllm_ttft:.2f} (vLLM V1), {sglang_ttft:.2f} (SGLang) and "
        "{trtllm_ttft:.2f} (TensorRT-LLM) of that of 2023, by their prefix caches; the "
        "99th percentile of gaps is {vllm:.2f}, {sglang:.2f} and {trtllm:.2f} of it, by "
        "steps of 8,192 tokens instead of whole prompts."
    ),
}
# vLLM's server on GPUs of 70 GiB and more (engine/arg_utils.py); SGLang has no such limit,
# its memory decides
LARGE_GPU = {"max_num_seqs": 1_024, "max_num_batched_tokens": 8_192}


def get_sections() -> tuple[Section, ...]:
    return tuple(_section(workload) for workload in LOADS)


def _section(workload: str) -> Section:
    rates, duration_s, from_s = LOADS[workload]
    base = measured(setting(workload), duration_s, from_s)
    models = {
        label: _model(workload, *parts, rate)
        for (label, parts), rate in zip(MODELS.items(), rates, strict=True)
    }
    is_long = base["model"]["max_context"] == LONG
    systems = _systems(is_long)
    notes = ("TensorRT-LLM with chunked context, as its budget is 8,192 tokens.",)
    figure = Figure(
        row="systems",
        figure=f"systems {workload}",
        title=workload,
        ran=f"Llama-3-8B at {rates[0]:g} and 70B at {rates[1]:g} arrivals/s for "
        f"{duration_s:.0f} s",
        runner="simulate",
        trial=base,
        grid={"model and chips": tuple(models), "system": tuple(systems)},
        choices={"model and chips": models, "system": complete(systems, base)},
        seeds=(0,),
        quick={
            "grid.model and chips": tuple(models)[:1],
            "duration_s": duration_s / 15,
            "measure.from_s": 0.0,
        },
        notes=notes if is_long else (),
    )
    return Section(
        group=GROUP,
        figure=figure,
        rows=("model and chips", "system"),
        columns=COLUMNS,
        finding=f"On the H100: {FINDINGS[workload]}",
        numbers=_numbers(),
    )


def _model(workload: str, model: str, chip: str, rate: float) -> dict[str, Any]:
    """The keys in which models and chips differ."""
    tree = setting(workload, model, chip)
    hardware = {key: tree["hardware"][key] for key in ("chip", "num_chips", "kv_bytes")}
    return {
        "model": tree["model"],
        "hardware": hardware,
        "workload": {"rate_per_s": rate},
    }


def _systems(is_long: bool) -> dict[str, dict[str, Any]]:
    trtllm = {
        label: preset(name)
        for label, name in (
            ("TensorRT-LLM, max utilization", "trtllm_max_utilization"),
            ("TensorRT-LLM, no evict", "trtllm_no_evict"),
        )
    }
    if is_long:
        for one in trtllm.values():
            one["scheduler"]["chunked_prefill"] = True
    today = {"vLLM V1": preset("vllm_v1"), "SGLang": preset("sglang")}
    for one in today.values():
        one["scheduler"].update(LARGE_GPU)
    return {"2023": {}, **today, **trtllm}


def _metric(path: str):
    return lambda found: found(path)


COLUMNS = (
    Column(name="normalised, s/token", ours=_metric("normalized_latency_s"), digits=3),
    Column(name="TTFT p50, s", ours=_metric("latency.ttft_s.p50")),
    Column(name="TTFT p99, s", ours=_metric("latency.ttft_s.p99")),
    Column(name="TPOT p50, s", ours=_metric("latency.tpot_s.p50"), digits=3),
    Column(name="TPOT p99, s", ours=_metric("latency.tpot_s.p99"), digits=3),
    Column(name="gaps p99, s", ours=_metric("latency.itl_s.p99"), digits=3),
    Column(name="in SLO, %", ours=_metric("slo.attained_percent"), digits=0),
    Column(name="found, %", ours=_metric("prefix_hit_percent"), digits=1),
    Column(name="running", ours=_metric("running_mean"), digits=0),
    Column(name="preemptions", ours=_metric("num_preemptions"), digits=0),
)


def _numbers() -> dict[str, Any]:
    names = {
        "vllm": "vLLM V1",
        "sglang": "SGLang",
        "trtllm": "TensorRT-LLM, max utilization",
    }
    gaps = {key: _over("latency.itl_s.p99", name) for key, name in names.items()}
    medians = {
        f"{key}_ttft": _over("latency.ttft_s.p50", name) for key, name in names.items()
    }
    return (
        gaps
        | medians
        | {
            "running": _on_first("running_peak", "2023"),
            "reserved": _on_first("latency.ttft_s.p99", "TensorRT-LLM, no evict"),
            "evicted": _on_first("latency.ttft_s.p99", "TensorRT-LLM, max utilization"),
        }
    )


def _over(path: str, name: str) -> Callable[[Found], float]:
    mine, base = _on_first(path, name), _on_first(path, "2023")
    return lambda found: mine(found) / base(found)


def _on_first(path: str, name: str) -> Callable[[Found], float]:
    """Of a system with the first of `MODELS`."""
    first = tuple(MODELS)[0]
    return lambda found: Found(
        [run for run in found.runs if run.labels["model and chips"] == first]
    )(path, system=name)
