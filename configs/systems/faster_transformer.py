"""FasterTransformer: a re-implementation of its batching and memory policy, not its code.

Source: the baseline of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1,
https://arxiv.org/abs/2309.06180): request-level batches behind a scheduler that takes the
earliest requests, as many as memory allows.

Modelled: a batch is admitted when the last one has ended; each sequence has a region of
the whole context; prompts of a batch are computed together and whole.

Not modelled: the padding of a batch to its longest member, and rows that ended but are
computed until the batch ends, so latency is a little better than the real one's. The
paper's artifact caps a batch by hand (5 for OPT-13B on 40 GB), here the pool does (7);
set `max_num_seqs` for its number.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(allocator="contiguous_max", block_size=16),
        scheduler=config_dict.create(
            max_num_seqs=256,
            max_num_batched_tokens=32_768,
            chunked_prefill=False,
            batching="request",
            watermark=0.0,
        ),
    )
