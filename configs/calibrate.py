"""What steps of the shipped model cost on this machine, by load and block size.

Steps of the grid `fit` are fitted; those of `held_out` are outside of it in block size,
context and batch, one at a time and all three at once. Three minutes on two CPU cores.

Run it on a quiet machine: the error that it prints has the noise of the held-out steps in
it, and where other processes keep the cores busy, that is most of it.

Run: python -m experiments.calibrate --config=configs/calibrate.py
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.output_folder = "results/calibrate"
    config.rounds = 15  # of the whole grid, as far as they fit into
    config.most_seconds = 150.0  # but no less than three rounds
    # of a step's times over the rounds. Other processes only add time: 0.1 is what the
    # device takes undisturbed, 0.5 what it takes on a machine as busy as this one
    config.quantile = 0.1
    config.max_prompt_tokens = 4000  # of a load; larger ones are left out
    config.weights_dtype = "float32"
    config.fit = config_dict.create(
        block_sizes=(8, 32),
        batches=(1, 6, 28, 56),
        contexts=(32, 128, 400),
    )
    config.held_out = config_dict.create(
        block_sizes=(16, 64),
        batches=(3, 14, 40),
        contexts=(64, 256, 700),
    )
    # one more engine, whose small pool makes it swap, and whose requests have two samples
    # that copy blocks, so that these have a price; no batches: they have none
    config.moves = config_dict.create(
        block_size=16,
        pool_positions=768,
        host_blocks=1024,
        batches=(4, 12, 6),
        contexts=(100, 40, 300),
    )
    # the limits of configs/serve.py, on which the padding of steps depends
    config.engine = config_dict.create(
        model="paxkv/assets/recall",
        seed=0,
        implementation="auto",
        matmul_precision="highest",
        max_context=1024,
        check_invariants=False,
    )
    config.cache = config_dict.create(pool_positions=65536, dtype="float32")
    config.scheduler = config_dict.create(max_num_seqs=64, max_num_batched_tokens=256)
    return config
