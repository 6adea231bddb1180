"""The shipped recall model, served from one pool size by four ways to allocate it.

Lengths are ShareGPT's, scaled to `max_context`; all requests arrive at once. The
pool holds four sequences of full context, which is all that contiguous-max can run.

Paged runs 5.4 times as many requests at once as contiguous-max, 3.2 times as many as the
oracle (measured; counted in requests, so the same on every machine). 39 s on 2 CPU cores.

Run: python -m experiments.serve --config=configs/serve.py
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.allocators = (
        "contiguous_max",
        "contiguous_pow2",
        "contiguous_oracle",
        "paged",
    )
    # usable ones; the same for all, whatever the block size. 0: as many as
    # cache.memory_fraction of the device's free memory holds
    config.pool_positions = 4096
    config.weights_dtype = "float32"
    config.output_folder = "results/serve"
    # The subtrees are the fields of EngineConfig, CacheConfig and SchedulerConfig; what
    # the comparison sets itself is absent: num_blocks, allocator.
    config.engine = config_dict.create(
        model="paxkv/assets/recall",
        seed=0,
        implementation="auto",
        matmul_precision="highest",
        max_context=1024,  # tokens; as long as the prompts of its training
        check_invariants=False,
    )
    config.cache = config_dict.create(
        block_size=16,
        memory_fraction=0.9,
        dtype="float32",
        shuffle_seed=config_dict.placeholder(int),
        # what only paged has: the contiguous systems run without (paxkv/systems.py)
        num_window_blocks=config_dict.placeholder(int),
        prefix_caching=False,
        granularity="block",
        eviction="lru",
        deduplicate=True,
        host_blocks=0,  # per cache group
        host_write="write_back",
        disk_folder=config_dict.placeholder(str),
        disk_bytes=2**30,
        checksums=True,
        poison=False,
        force_miss=False,
        delay_steps=0,
    )
    config.scheduler = config_dict.create(
        max_num_seqs=64,
        max_num_batched_tokens=256,
        chunked_prefill=True,
        mix_prefill=True,
        batching="iteration",
        watermark=0.01,
        victim="newest",
        max_preemptions=8,
        preempt_every=0,
        admission="watermark",
        scheduling="fcfs",
        # and of these, too, only paged has more than the default
        pressure="preempt_recompute",
        hold_shared_prefixes=False,
        retain=("completed", "cancelled", "failed", "preempted"),
        swap_s_per_block=0.0,  # experiments.measure_relocation measures both
        recompute_s_per_token=0.0,
    )
    config.workload = config_dict.create(
        num_requests=48,
        seed=0,
        arrival="at_once",  # or "poisson"
        rate_per_s=10.0,  # of "poisson"
    )
    return config
