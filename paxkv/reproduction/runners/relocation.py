"""What the K/V of some tokens cost to swap and to compute again, by the roofline.

Of the tree it reads the trial, of a model with one cache group, and
`relocation.num_tokens`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paxkv.reproduction.runners.trials import trial_of, whole_blocks
from paxkv.simulation.cost_models import build_cost_model
from paxkv.simulation.work import StepWork

KIND = "computed"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Milliseconds of whole blocks out and in, and of a step that computes nothing but a
    prompt of so many tokens. The host's own time is left out.

    Raises:
      ValueError: the blocks do not hold the tokens exactly, or the chip has no figures.
    """
    trial, num_tokens = trial_of(tree), tree["relocation"]["num_tokens"]
    cache, scheduler = trial.engine.cache, trial.engine.scheduler
    num_blocks = whole_blocks(num_tokens, cache.block_size)
    cost = build_cost_model(
        profile,
        trial.hardware,
        trial.model,
        block_size=cache.block_size,
        kv_dtype=cache.dtype,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )

    none = StepWork(
        num_seqs=1,
        num_decode_tokens=0,
        num_prefill_tokens=0,
        decode_context_tokens=(0,),
        decode_read_tokens=(0,),
        prefill_pairs=(0,),
        prefill_context_tokens=(0,),
    )
    prompt = replace(
        none,
        num_prefill_tokens=num_tokens,
        prefill_pairs=(num_tokens * (num_tokens + 1) // 2,),
        prefill_context_tokens=(num_tokens,),
    )
    out_s = cost.seconds(replace(none, num_swapped_out_blocks=num_blocks)).swap_s
    in_s = cost.seconds(replace(none, num_swapped_in_blocks=num_blocks)).swap_s
    return {
        "swap_out_ms": 1e3 * out_s,
        "swap_in_ms": 1e3 * in_s,
        "swap_ms": 1e3 * (out_s + in_s),
        "recompute_ms": 1e3 * cost.seconds(prompt).prefill_s,
    }
