"""TensorRT-LLM, GUARANTEED_NO_EVICT: a re-implementation of its policy, not its code.

Source: the documentation of TensorRT-LLM 1.x (KV cache system, scheduler,
https://nvidia.github.io/TensorRT-LLM/) and its KV cache manager. The limits (blocks of
32, 2,048 sequences, 8,192 tokens a step, no chunked context) are settings that it has,
not checked against one release.

Modelled: a request is admitted only if all that run can reach their longest output, so
that nobody is ever preempted; first come first served; prompts and decodes in one step;
block reuse with retention priorities and copies of blocks that match in part; a request
waits while another computes a block that it could use.

Not modelled: an unused leaf that matches in part is taken over there, copied here;
offloading (set `host_blocks`); the static-batch policy. A context longer than 8,192
tokens needs a larger budget or `chunked_prefill=True`.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        cache=config_dict.create(
            allocator="paged",
            block_size=32,
            prefix_caching=True,
            granularity="token",
            eviction="priority",
        ),
        scheduler=config_dict.create(
            max_num_seqs=2048,
            max_num_batched_tokens=8192,
            chunked_prefill=False,
            watermark=0.0,
            scheduling="fcfs",
            hold_shared_prefixes=True,
            admission="reserve",
        ),
    )
