"""Orca (Pow2): a re-implementation of its memory and scheduling policy, not its code.

Source: Yu et al., OSDI 2022, as the PagedAttention paper rebuilt it for its evaluation
(Kwon et al., SOSP 2023, section 6.1, https://arxiv.org/abs/2309.06180) and as its
artifact sets it.

Modelled: iteration-level scheduling; at admission a region for the prompt and the next
power of two above the true output length, as a chunk of a binary buddy arena; first come
first served, the first without room holds up the others; no sharing, no growth, no
preemption, no swapping; prompts computed whole, at most 2,560 tokens a step.

Not modelled: a cap of 2,048 requests (`max_num_seqs` counts sequences), so a request of
several sequences takes as many of these. Beams have their chunks at admission, all or
none, and a fork copies its parent's blocks; other samples of a request take theirs as
they fork, and wait where there is none. Orca's own kernels and its pipeline.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(allocator="contiguous_pow2", block_size=16),
        scheduler=config_dict.create(
            max_num_seqs=2048,
            max_num_batched_tokens=2560,
            chunked_prefill=False,
            watermark=0.0,
        ),
    )
