"""Rows as a trial writes them, with the numbers that a test sets."""

import json
from pathlib import Path
from typing import Any

from paxkv.analysis.waste import CLASSES
from paxkv.results import SCHEMA_VERSION


def trial_row(
    *,
    name: str = "run",
    kind: str = "simulated",
    profile: str = "calibrated",
    device: str = "1 x a100_40",
    seed: int = 0,
    config: dict[str, Any] | None = None,
    cell: dict[str, Any] | None = None,
    shares: dict[str, float] | None = None,
    slo: dict[str, Any] | None = None,
    **metrics: Any,
) -> dict[str, Any]:
    """A row of `experiments.simulate_trace`; `config` has dotted keys."""
    settings = {
        "cache.block_size": 16,
        "workload.arrival": "poisson",
        "workload.structure": "single",
        "workload.rate_per_s": 2.0,
        "workload.seed": seed,
    }
    row: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "experiment": "simulate_trace",
        "kind": kind,
        "seed": seed,
        "device": device,
        "name": name,
        "profile": profile,
        "config": _nested(settings | (config or {})),
        "pool": {
            "num_blocks": 65,
            "block_size": 16,
            "positions": 1024,
            "bytes_per_token": 1024,
        },
        "metrics": {
            "num_finished": 100,
            "num_rejected": 0,
            "num_steps": 1000,
            "num_queue_steps": 400,
            "running_mean": 8.0,
            "running_peak": 12,
            "capacity": 10.0,
            "held_per_request": 100.0,
            "tail_per_request": 7.5,
            "partition_percent": dict.fromkeys(CLASSES, 0.0)
            | {"token_states": 90.0, "tail": 5.0, "free": 5.0}
            | (shares or {}),
            "table_bytes_peak": 2048,
            "throughput_tokens_per_s": 500.0,
            "normalized_latency_s": 0.05,
            "ttft_p95_s": 1.0,
            "tpot_p50_s": 0.02,
            "num_preemptions": 0,
            "num_recomputed_tokens": 0,
            "num_prefill_tokens": 1000,
            "num_decode_tokens": 9000,
            "prefix_hit_percent": 0.0,
            "duplicate_blocks_peak": 0,
            "timeline": {"time_s": [0.0, 1.0, 2.0], "running": [1, 3, 2]},
            "slo": slo,
        }
        | metrics,
    }
    if cell is not None:
        row["cell"] = cell
    return row


def write_rows(path: Path, *rows: dict[str, Any], extra: str = "") -> Path:
    """Writes a rows.jsonl, with lines that are no rows after them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + extra, "utf-8")
    return path


def _nested(leaves: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *above, last = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return tree
