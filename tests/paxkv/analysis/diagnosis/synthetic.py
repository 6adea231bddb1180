"""Requests and rows with known causes."""

from collections.abc import Mapping
from typing import Any

from paxkv.analysis.diagnosis.floors import Floor
from paxkv.analysis.request_records import RequestRecord

ALONE_S = 0.01  # of a decode
FLOOR = Floor(decode_alone_s=lambda tokens: ALONE_S, budget_tokens=512, source="the test")


def request(
    request_id: int,
    ttft_causes_s: Mapping[str, float | int],
    decode_causes_s: Mapping[str, float | int],
    **changes: Any,
) -> RequestRecord:
    """One that took exactly these seconds; eleven tokens, so ten after the first."""
    ttft_s, rest_s = sum(ttft_causes_s.values()), sum(decode_causes_s.values())
    values = {
        "request_id": request_id,
        "arrival_s": 1.0,
        "first_scheduled_s": 1.0,
        "first_token_s": 1.0 + ttft_s,
        "finish_s": 1.0 + ttft_s + rest_s,
        "num_prompt_tokens": 100,
        "num_output_tokens": 11,
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "num_recomputed_tokens": 0,
        "num_swaps": 0,
        "reason": "LENGTH",
        "ttft_causes_s": ttft_causes_s,
        "decode_causes_s": decode_causes_s,
    }
    return RequestRecord(**{**values, **changes})


def alike(
    count: int,
    ttft_causes_s: Mapping[str, float | int],
    decode_causes_s: Mapping[str, float | int] | None = None,
    **changes: Any,
) -> list[RequestRecord]:
    """Requests that differ by less than 0.1 %, so that they have an order."""

    def scaled(causes_s: Mapping[str, float | int], index: int) -> dict[str, float]:
        return {c: s * (1 + 1e-3 * index / count) for c, s in causes_s.items()}

    decode = decode_causes_s if decode_causes_s is not None else {"decode": 10 * ALONE_S}
    return [
        request(index, scaled(ttft_causes_s, index), scaled(decode, index), **changes)
        for index in range(count)
    ]


def config(**changes: Any) -> dict[str, Any]:
    """What knobs read of a trial's tree; keys of `changes` have __ for the dot."""
    tree: dict[str, Any] = {
        "cache": {
            "block_size": 16,
            "num_blocks": 1001,
            "allocator": "paged",
            "prefix_caching": False,
            "host_blocks": 0,
            "dtype": "bfloat16",
        },
        "scheduler": {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 512,
            "watermark": 0.01,
            "admission": "watermark",
            "pressure": "preempt_recompute",
            "scheduling": "fcfs",
        },
        "hardware": {"num_chips": 1},
        "router": {"policy": "round_robin", "num_replicas": 1},
    }
    for key, value in changes.items():
        part, _, name = key.partition("__")
        assert name in tree[part]
        tree[part][name] = value
    return tree


def metrics(free: float = 50.0, tail: float = 2.0, **changes: Any) -> dict[str, Any]:
    """Counters of a row; what is neither free nor tail of its pool has tokens."""
    shares = {"tail": tail, "free": free, "reserved": 0.0, "internal": 0.0}
    shares |= {"rounding": 0.0, "cached": 0.0}
    shares["token_states"] = 100.0 - sum(shares.values())
    values = {
        "partition_percent": shares,
        "unusable_free_percent": 0.0,
        "num_positions": 16000,
        "num_steps": 1000,
        "num_queue_steps": 500,
        "capacity": 20.0,
        "running_mean": 15.0,
        "running_peak": 25,
        "num_preemptions": 0,
        "num_recomputed_tokens": 0,
        "num_swapped_out_blocks": 0,
        "num_swapped_in_blocks": 0,
        "num_copied_blocks": 0,
    }
    return {**values, **changes}
