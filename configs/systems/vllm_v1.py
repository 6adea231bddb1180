"""vLLM V1: a re-implementation of its memory and scheduling policy, not its code.

Source: `vllm/v1/core/sched/scheduler.py` and `kv_cache_manager.py` of vLLM 0.32.0.

Modelled: running requests come first, then waiting ones as long as nobody was preempted,
within one budget; prompts are cut into chunks; the newest gives way and is recomputed;
blocks that nobody owns stay cached in the order of their release.
`tests/paxkv/test_vllm_fidelity.py` compares the two, decision by decision.

Known differences:
- A prompt that is cached whole computes its last token here, its last block there. So it
  may need one block less here, and a victim that shares all its blocks is passed over.
- K/V that a step computes can be found by requests from the next step on here, there also
  by those that are admitted after it in the same step.
- Of two equal blocks that two requests computed, the second has no key here; there it can
  be found once the first is gone.
- The oldest request is never preempted here. There it is, when it is the last one
  running.

Not modelled: asynchronous scheduling, speculative decoding, encoders, connectors,
`long_prefill_token_threshold`. The limits are those of a server on a GPU of less than 70
GiB.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(
            allocator="paged",
            block_size=16,
            prefix_caching=True,
            granularity="block",
            deduplicate=False,
            eviction="released",
        ),
        scheduler=config_dict.create(
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            watermark=0.0,
            victim="newest",
            max_preemptions=10**6,  # no limit
            pressure="preempt_recompute",
            admission="watermark",
            scheduling="fcfs",
        ),
    )
