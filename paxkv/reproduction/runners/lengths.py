"""Lengths of the prompts and outputs that a workload draws.

Of the tree it reads the workload, and `num_pairs`.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from paxkv.workloads.lengths import length_pairs
from paxkv.workloads.workload_config import WorkloadConfig

KIND = "computed"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Tokens: means and percentiles of prompts (`input`) and outputs (`output`), and the
    longest of a prompt and its output together."""
    del profile  # no time passes
    workload = WorkloadConfig(**tree["workload"])
    pairs = length_pairs(
        np.random.default_rng(workload.seed),
        workload.lengths,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        input_sigma=workload.input_sigma,
        output_sigma=workload.output_sigma,
    )
    lengths = np.array(list(islice(pairs, tree["num_pairs"])), np.int64)
    return {
        "input": _spread(lengths[:, 0]),
        "output": _spread(lengths[:, 1]),
        "longest": int(lengths.sum(axis=1).max()),
    }


def _spread(lengths: np.ndarray) -> dict[str, float]:
    p50, p95 = np.percentile(lengths, (50, 95))
    return {"mean": float(lengths.mean()), "p50": float(p50), "p95": float(p95)}
