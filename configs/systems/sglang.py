"""SGLang: a re-implementation of its memory and scheduling policy, not its code.

Source: SGLang 0.5.23 (`managers/schedule_policy.py`, `schedule_batch.py`, `mem_cache`),
and Zheng et al., NeurIPS 2024 (https://arxiv.org/abs/2312.07104). Chunks are of the size
that it takes on a GPU of 80 GB; `max_num_seqs` is a choice, there memory decides.

Modelled: a radix cache that matches to the token; the longest cached prefix first, by age
if more than 128 wait; prompts before decodes, never in one step; prompts cut into chunks
of 8,192 tokens; admission by a share of what may still be generated, which sinks while
all goes well; retraction of who has decoded least, whose K/V does not stay cached; a
request waits while another computes its prefix (there it is sorted last).

Differences:
- Pages of one token there. Here blocks of 16 that are copied where they match in part, so
  up to 15 positions of a sequence's last block are waste.
- The oldest request is never retracted here; there one request at least is kept.
- A retracted request goes back to its place by age, there to the end of the queue.
- There, one that cannot go on alone is aborted; here it is refused when it comes.

Not modelled: overlap scheduling, mixed chunks, speculative decoding, hierarchical
caching.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(
            allocator="paged",
            block_size=16,
            prefix_caching=True,
            granularity="token",
            deduplicate=True,
            eviction="lru",
        ),
        scheduler=config_dict.create(
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            mix_prefill=False,
            victim="fewest_outputs",
            max_preemptions=10**6,
            pressure="preempt_recompute",
            admission="optimistic",
            scheduling="longest_prefix",
            hold_shared_prefixes=True,
            retain=("completed", "cancelled", "failed"),
        ),
    )
