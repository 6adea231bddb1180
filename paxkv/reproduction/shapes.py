"""The lengths that a workload draws, and how much of its prompts was said before."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paxkv.workloads.drawing import Workload
from paxkv.workloads.workload_config import WorkloadConfig


def drawn_shape(tree: Mapping[str, Any], num_sessions: int) -> tuple[float, ...]:
    """Mean, median and 99th percentile of prompts (tokens), the same of outputs, and the
    percentage of prompt tokens that the session's own earlier turns had.

    Args:
      tree: of configs/trial.py, without a trace; its seed decides.
    """
    config: dict[str, Any] = {**tree["workload"], "num_requests": num_sessions}
    model = tree["model"]
    workload = Workload(
        WorkloadConfig(**config),
        max_context=model["max_context"],
        vocab_size=model["vocab_size"],
    )
    prompts: list[int] = []
    outputs: list[int] = []
    num_known = 0
    for session in workload:
        history = 0
        for turn in session.turns:
            num_known += history
            prompts.append(history + len(turn.prompt_ids))
            outputs.append(turn.max_tokens)
            history = prompts[-1] + turn.max_tokens
    return (*_spread(prompts), *_spread(outputs), 100 * num_known / sum(prompts))


def _spread(lengths: list[int]) -> tuple[float, float, float]:
    mean, half, most = np.mean(lengths), *np.percentile(lengths, (50, 99))
    return float(mean), float(half), float(most)
