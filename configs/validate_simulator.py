"""Does the simulator predict this machine? Goals: latencies and throughput within 10 % at
85 % load, on lengths that its costs were not fitted to; policies in the same order, with
Kendall's tau ≥ 0.9.

Run: python -m experiments.validate_simulator
"""

from ml_collections import config_dict

from configs.local import get_config as local


def get_config() -> config_dict.ConfigDict:
    config = local()
    config.output_folder = "results/validate_simulator"
    config.workload.num_requests = 150
    # the costs are fitted to steps of runs with ShareGPT's lengths at these rates
    config.validate = config_dict.create(
        fit_rates_per_s=(8.0, 16.0),
        load=0.85,  # of the rate at which requests that all wait are served
        seeds=(1, 2, 3),
        # the workload that is predicted
        lengths="lognormal",
        input_tokens=80,
        output_tokens=100,
        # whose normalised latencies are ranked, under twice the rate that can be served
        policies=(
            "scheduling=fcfs",
            "scheduling=shortest_prefill",
            "max_num_seqs=4",
            "max_num_seqs=8",
            "max_num_seqs=16",
            "pressure=reject",
        ),
    )
    return config
