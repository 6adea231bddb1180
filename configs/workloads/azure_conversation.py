"""Azure's trace of conversations: 1,155 tokens in, 211 out, at nearly Poisson times.

19,366 requests in an hour of November 2023; a larger num_requests takes them all. Download
https://github.com/Azure/AzurePublicDataset/blob/master/data/AzureLLMInferenceTrace_conv.csv
(CC-BY; cite Splitwise, Patel et al., ISCA 2024) into data/, or set trace_path.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="trace",
        rate_scale=1.0,
        structure="trace",
        trace_path="data/AzureLLMInferenceTrace_conv.csv",
        trace_format="azure",
        too_long="clip",
    )
