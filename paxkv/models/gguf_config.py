"""Metadata of a GGUF file to `ModelConfig`, with the facts that such files leave out."""

from typing import Any

import numpy as np

from paxkv.models.config import FULL_ATTENTION, ModelConfig, RopeConfig
from paxkv.models.gguf_file import GgufFile
from paxkv.models.rope import inverse_frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
# Files may leave these out, since all models of the architecture have the same.
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # layers; the last of so many is global
ATTENTION_SOFT_CAP = {"gemma2": 50.0}
FINAL_SOFT_CAP = {"gemma2": 30.0}
LOCAL_ROPE_THETA = {"gemma3": 10_000.0}
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}  # scale by hidden / heads, not head size
# Of Llama 3.1 and later; only the factor differs between models.
LLAMA3_ROPE = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Reads the metadata and the names of the tensors.

    Raises:
      ValueError: the architecture or its RoPE scaling is not supported, or a fact is
        missing.
    """
    arch = file.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ValueError(
            f"architecture {arch!r} of {file.place} is not supported; choose a file of "
            f"one of {', '.join(ARCHITECTURES)}."
        )

    def fact(name: str, *default: Any) -> Any:
        value = file.metadata.get(f"{arch}.{name}", *default)
        if value is None and not default:
            raise ValueError(
                f"{file.place} lacks {arch}.{name}; download it again or convert the "
                "original model."
            )
        return value

    names = set(file.names())
    is_gemma = arch.startswith("gemma")
    hidden, heads = fact("embedding_length"), fact("attention.head_count")
    num_layers = fact("block_count")
    head_dim = fact("attention.key_length", hidden // heads)
    scale_dim = hidden // heads if num_layers == GEMMA_27B_LAYERS.get(arch) else head_dim
    qkv_bias = "blk.0.attn_q.bias" in names
    tokenizer = {
        name: file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos", "eot")
    }
    ends = (tokenizer["eos"], tokenizer["eot"])
    rope = _rope(file, fact, head_dim)
    local_theta = fact("rope.freq_base_swa", LOCAL_ROPE_THETA.get(arch))
    return ModelConfig(
        family=arch,
        vocab_size=file.shape("token_embd.weight")[0],
        hidden_size=hidden,
        intermediate_size=fact("feed_forward_length"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=fact("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_context=fact("context_length"),
        norm_eps=float(fact("attention.layer_norm_rms_epsilon")),
        activation="gelu_tanh" if is_gemma else "silu",
        qkv_bias=qkv_bias or arch == "qwen2",
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_up.bias" in names,
        qk_norm=arch in ("qwen3", "gemma3"),
        post_norms=is_gemma,
        rope=rope,
        local_rope=None if local_theta is None else RopeConfig(theta=local_theta),
        layer_windows=_windows(fact, num_layers, GLOBAL_EVERY.get(arch)),
        attention_scale=scale_dim**-0.5,
        attention_soft_cap=fact("attn_logit_softcapping", ATTENTION_SOFT_CAP.get(arch)),
        final_soft_cap=fact("final_logit_softcapping", FINAL_SOFT_CAP.get(arch)),
        embedding_scale=hidden**0.5 if is_gemma else 1.0,
        tied_embeddings="output.weight" not in names,
        bos_token_id=tokenizer["bos"],
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
    )


def _windows(fact: Any, num_layers: int, global_every: int | None) -> tuple[int, ...]:
    """Tokens per layer. The pattern in a file may be a period or a flag per layer."""
    window = fact("attention.sliding_window", None) or FULL_ATTENTION
    pattern = fact("attention.sliding_window_pattern", global_every)
    if isinstance(pattern, list):
        return tuple(window if slides else FULL_ATTENTION for slides in pattern)
    return tuple(
        FULL_ATTENTION if pattern and (layer + 1) % pattern == 0 else window
        for layer in range(num_layers)
    )


def _rope(file: GgufFile, fact: Any, head_dim: int) -> RopeConfig:
    theta = float(fact("rope.freq_base", 10_000.0))
    rotated = fact("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(
            f"{file.place} rotates {rotated} of {head_dim} dimensions per head, only all "
            "of them are supported; choose another model."
        )
    scaling = fact("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ValueError(
            f"rope scaling {scaling!r} of {file.place} is not supported, only linear and "
            "Llama 3's are; choose another model."
        )
    if "rope_freqs.weight" in file.names():
        return _llama3_rope(file, theta, head_dim)
    factor = float(fact("rope.scaling.factor", 1.0))
    if scaling == "none" or factor == 1.0:
        return RopeConfig(theta=theta)
    return RopeConfig(theta=theta, scaling="linear", factor=factor)


def _llama3_rope(file: GgufFile, theta: float, head_dim: int) -> RopeConfig:
    """Llama 3.1's scaling is stored as its effect: a divisor of each frequency."""
    divisors = file.read("rope_freqs.weight")
    rope = RopeConfig(
        theta=theta, scaling="llama3", factor=float(divisors.max()), **LLAMA3_ROPE
    )
    plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    expected = plain / inverse_frequencies(rope, head_dim)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ValueError(
            f"rope_freqs.weight of {file.place} is not Llama 3's scaling ({LLAMA3_ROPE}) "
            f"and a factor of {divisors.max():g}; load the original model instead."
        )
    return rope
