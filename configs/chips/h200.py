"""One H200 SXM."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        chip="h200",
        num_chips=1,
        memory_fraction=0.95,
        workspace_bytes=2**30,
        calibration=config_dict.placeholder(str),
        kv_bytes=config_dict.placeholder(int),
        link_bytes_per_s=config_dict.placeholder(float),
        host_link_bytes_per_s=config_dict.placeholder(float),
        product=config_dict.placeholder(float),
        weights_read=config_dict.placeholder(float),
        decode_attention=config_dict.placeholder(float),
        prefill_attention=config_dict.placeholder(float),
        attention_kernel=config_dict.placeholder(str),
        host_s_per_step=config_dict.placeholder(float),
        host_s_per_seq=config_dict.placeholder(float),
        disk_bytes_per_s=config_dict.placeholder(float),
        collective_latency_s=config_dict.placeholder(float),
    )
