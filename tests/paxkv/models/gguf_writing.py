"""Writes a fixture as a GGUF file, by the conventions of llama.cpp's converter.

Names come from the gguf package's own map, so that a wrong name of ours is noticed.
"""

from pathlib import Path

import gguf
import numpy as np

from paxkv.models.safetensors_file import SafetensorsFiles
from tests.paxkv.models.hf_fixtures import FOLDER, decoder_of

ARCHITECTURES = {
    "llama2": "llama",
    "llama_mqa": "llama",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
}


def interleaved(x: np.ndarray, heads: int) -> np.ndarray:
    """The row order of Llama's GGUF files: the halves of each head in turn."""
    halves = x.reshape(heads, 2, -1, *x.shape[1:])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(x.shape)


def write_gguf(
    name: str,
    path: Path,
    *,
    extra: dict[str, np.ndarray] | None = None,
    rope_theta: float | None = None,
) -> None:
    """The fixture `name` as float32, with `extra` tensors or another RoPE base."""
    arch, config = ARCHITECTURES[name], decoder_of(name).config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(rope_theta or config.rope.theta)
    if config.rope.scaling == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope.factor)
    if any(config.layer_windows):
        writer.add_sliding_window(max(config.layer_windows))
    if config.final_soft_cap is not None:
        writer.add_final_logit_softcapping(config.final_soft_cap)
        writer.add_attn_logit_softcapping(config.attention_soft_cap)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_ids[0])
    for tensor_name, array in (_tensors(name, arch) | (extra or {})).items():
        writer.add_tensor(tensor_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(name: str, arch: str) -> dict[str, np.ndarray]:
    config = decoder_of(name).config
    arch_id = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(arch_id, config.num_layers)
    tensors = {}
    with SafetensorsFiles(FOLDER / name) as files:
        for hf_name in files.names():
            array = files.read(hf_name)
            full_name = hf_name if hf_name.startswith("lm_head") else f"model.{hf_name}"
            gguf_name = names.get_name(full_name, try_suffixes=(".weight", ".bias"))
            assert gguf_name is not None, hf_name
            if arch.startswith("gemma") and hf_name.endswith("norm.weight"):
                array = array + 1
            for projection, heads in (
                ("q_proj", config.num_heads),
                ("k_proj", config.num_kv_heads),
            ):
                if arch == "llama" and f".{projection}." in hf_name:
                    array = interleaved(array, heads)
            tensors[gguf_name] = np.ascontiguousarray(array)
    return tensors
