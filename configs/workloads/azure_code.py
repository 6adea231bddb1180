"""Azure's trace of code completion: long prompts, 28 tokens of output, in bursts.

8,819 requests in an hour of November 2023; a larger num_requests takes them all. Download
https://github.com/Azure/AzurePublicDataset/blob/master/data/AzureLLMInferenceTrace_code.csv
(CC-BY; cite Splitwise, Patel et al., ISCA 2024) into data/, or set trace_path. The week of
2024 is read as well: https://azurepublicdatasettraces.blob.core.windows.net/
azurellminfererencetrace/AzureLLMInferenceTrace_code_1week.csv
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="trace",
        rate_scale=1.0,
        structure="trace",
        trace_path="data/AzureLLMInferenceTrace_code.csv",
        trace_format="azure",
        too_long="clip",
    )
