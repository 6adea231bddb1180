"""vLLM as the PagedAttention paper has it: a re-implementation of its policy, not its code.

Source: Kwon et al., SOSP 2023, sections 4.3 to 4.5 (https://arxiv.org/abs/2309.06180),
and the settings of its artifact: blocks of 16, at most 2,560 tokens a step, a watermark
of 1 %, 20 GiB of host memory per GPU.

Modelled: first come first served; prompts whole, mixed with decodes in one step; the
newest request gives way with all its sequences; one of one sequence is recomputed, one of
several is swapped, shared blocks once; while anybody is on the host nobody new is
admitted, and in a step that preempted nobody comes back.

Differences:
- The artifact preempts when fewer blocks are free than sequences run, here when a block
  is really missing.
- Its limit of 2,048 counts requests, `max_num_seqs` counts sequences.
- A request that was swapped in computes its next token in the step after, there in the
  same.
- After a recomputation nobody is swapped in in that step; there only a swap-out forbids
  it.
- The oldest request is never preempted here; there it is when it runs alone.
- `host_blocks` is 20 GiB for OPT-13B (12.5 MiB a block); other models have other numbers.

Not modelled: its kernels, its workers.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(allocator="paged", block_size=16, host_blocks=1638),
        scheduler=config_dict.create(
            max_num_seqs=2048,
            max_num_batched_tokens=2560,
            chunked_prefill=False,
            watermark=0.01,
            victim="newest",
            max_preemptions=10**6,
            pressure="paper",
            admission="watermark",
            scheduling="swapped_first",
        ),
    )
