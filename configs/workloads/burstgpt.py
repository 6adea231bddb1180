"""BurstGPT: two services' requests over months, with their bursts.

Millions of rows, so set num_requests. Download
https://github.com/HPMLL/BurstGPT/releases/download/v1.1/BurstGPT_without_fails_2.csv
(CC-BY-4.0; cite BurstGPT, Wang et al., KDD 2025) into data/, or set trace_path. The files
with failed requests are read as well: a failed one asks for no output, so it is reported
and left out.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="trace",
        rate_scale=1.0,
        structure="trace",
        trace_path="data/BurstGPT_without_fails_2.csv",
        trace_format="burstgpt",
        max_malformed=10_000_000,
        too_long="clip",
    )
