"""One region of the whole context for every sequence: the cache that paging replaced.

Source: the baseline of the PagedAttention paper (Kwon et al., SOSP 2023, sections 3.1 and
6.1, https://arxiv.org/abs/2309.06180). A re-implementation of a memory policy under this
project's scheduler and its limits, so that a comparison with `allocator="paged"` differs
in memory alone.

Modelled: a region of the longest sequence at admission, first come first served, no
growth, no sharing. Not modelled: any one product. Regions come from a buddy arena, which
rounds their blocks up to a power of two; a context of 16 x 2^k tokens loses nothing by
that.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(allocator="contiguous_max"),
        scheduler=config_dict.create(max_num_seqs=256, max_num_batched_tokens=2560),
    )
