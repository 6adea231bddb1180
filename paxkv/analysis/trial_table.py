"""The table of one or several trials: metrics down, trials across."""

from collections.abc import Sequence

from paxkv.analysis.serving import SHARING_LINES, Cell, aligned, number
from paxkv.analysis.waste import CLASSES
from paxkv.results import Row

_LATENCIES = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"))


def _latency_lines() -> list[tuple[str, Cell]]:
    lines: list[tuple[str, Cell]] = []
    for key, name in _LATENCIES:
        for at in ("p50", "p95", "p99"):
            cell = number("latency", key, at, digits=1, scale=1e3)
            lines.append((f"{name} {at}, ms", cell))
    return lines


TRIAL_LINES: tuple[tuple[str, Sequence[tuple[str, Cell]]], ...] = (
    (
        "requests",
        (
            ("finished", number("num_finished", digits=0)),
            ("rejected", number("num_rejected", digits=0)),
            ("running, mean", number("running_mean")),
            ("running, peak", number("running_peak", digits=0)),
            ("running, mean with a queue", number("capacity")),
            ("preemptions", number("num_preemptions", digits=0)),
            ("tokens recomputed", number("num_recomputed_tokens", digits=0)),
        ),
    ),
    ("shared and moved", SHARING_LINES),
    (
        "% of the pool, mean with a queue",
        tuple(
            (name.replace("_", " "), number("partition_percent", name)) for name in CLASSES
        ),
    ),
    (
        "latency",
        (
            *_latency_lines(),
            ("normalised, ms a token", number("normalized_latency_s", scale=1e3)),
            ("output tokens/s", number("throughput_tokens_per_s", digits=0)),
        ),
    ),
    (
        "promise (slo)",
        (
            ("kept by, % of requests", number("slo", "attained_percent")),
            ("goodput, requests/s", number("slo", "goodput_per_s", digits=3)),
        ),
    ),
    (
        "seconds of all steps",
        (
            ("decoding", number("decode_s")),
            ("prefill", number("prefill_s")),
            ("swaps", number("swap_s")),
            ("copies of blocks", number("copy_s")),
            ("communication", number("communication_s")),
            ("host", number("host_s")),
        ),
    ),
    (
        "the run",
        (
            ("steps", number("num_steps", digits=0)),
            ("its clock, s", number("duration_s")),
            ("it took, s", number("wall_s")),
        ),
    ),
)


def trial_table(rows: Sequence[Row]) -> str:
    """One column per row, headed by its profile."""
    head = [["", *(row["profile"] for row in rows)]]
    body: list[list[str]] = []
    for title, lines in TRIAL_LINES:
        body.append([title])
        body.extend([f"  {label}", *(cell(row) for row in rows)] for label, cell in lines)
    return aligned(head, body)
