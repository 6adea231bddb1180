"""Which tensor of a file holds which parameter of the decoder, per family.

Names are as in Hugging Face files without the prefixes that name enclosing modules
(`model.`, `transformer.`, ...), or as in GGUF files; `{layer}` is the layer's index.
Files keep a linear map as [out, in], the decoder as [in, out].
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from paxkv.models.config import ModelConfig
from paxkv.models.parameters import LAYERS

Convert = Callable[[np.ndarray], np.ndarray]
OPT_RESERVED_POSITIONS = 2  # leading rows of its table that no token uses


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor's name in the file, and what makes it the decoder's parameter."""

    name: str
    convert: Convert


Table = Mapping[str, Source]  # by path of the parameter


def as_is(x: np.ndarray) -> np.ndarray:
    return x


def transpose(x: np.ndarray) -> np.ndarray:
    return x.T


def add_one(x: np.ndarray) -> np.ndarray:
    """A norm that multiplies by 1 + w; sums in float32."""
    return x.astype(np.float32) + 1


def third(x: np.ndarray, index: int) -> np.ndarray:
    """The query, key or value part of GPT-2's fused projection, already [in, out]."""
    if x.shape[-1] % 3:
        raise ValueError(f"the last axis of {x.shape} must be three equal parts.")
    return np.split(x, 3, axis=-1)[index]


def half_split(x: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the row order of Llama's GGUF files, which rotate neighbouring pairs.

    There the rows of a head come as 0, D/2, 1, D/2 + 1, ...
    """
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _linear(
    ours: str, theirs: str, *steps: Convert, in_first: bool = False
) -> dict[str, Source]:
    """Kernel and bias of a linear map; `steps` apply to both before the transpose."""

    def convert(x: np.ndarray) -> np.ndarray:
        for step in steps:
            x = step(x)
        return x if in_first or x.ndim == 1 else transpose(x)

    return {
        f"{ours}.kernel": Source(f"{theirs}.weight", convert),
        f"{ours}.bias": Source(f"{theirs}.bias", convert),
    }


def _norm(ours: str, theirs: str, convert: Convert = as_is) -> dict[str, Source]:
    return {
        f"{ours}.scale": Source(f"{theirs}.weight", convert),
        f"{ours}.bias": Source(f"{theirs}.bias", as_is),
    }


def _in_layers(table: Table, prefix: str) -> dict[str, Source]:
    return {
        f"{LAYERS}.{path}": Source(f"{prefix}.{{layer}}.{source.name}", source.convert)
        for path, source in table.items()
    }


def _rotary(config: ModelConfig) -> Table:
    """Llama, Mistral, Qwen and, with their own norms, the Gemmas."""
    is_gemma = config.family in ("gemma2", "gemma3")
    norm = partial(_norm, convert=add_one if is_gemma else as_is)
    mlp_norm = "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"
    layer = (
        norm("attention_norm", "input_layernorm")
        | _linear("q_proj", "self_attn.q_proj")
        | _linear("k_proj", "self_attn.k_proj")
        | _linear("v_proj", "self_attn.v_proj")
        | _linear("o_proj", "self_attn.o_proj")
        | norm("q_norm", "self_attn.q_norm")
        | norm("k_norm", "self_attn.k_norm")
        | norm("post_attention_norm", "post_attention_layernorm")
        | norm("mlp_norm", mlp_norm)
        | _linear("gate_proj", "mlp.gate_proj")
        | _linear("up_proj", "mlp.up_proj")
        | _linear("down_proj", "mlp.down_proj")
        | norm("post_mlp_norm", "post_feedforward_layernorm")
    )
    return (
        {"embedding.embedding": Source("embed_tokens.weight", as_is)}
        | _in_layers(layer, "layers")
        | norm("final_norm", "norm")
        | _linear("lm_head", "lm_head")
    )


def _opt(config: ModelConfig) -> Table:
    layer = (
        _norm("attention_norm", "self_attn_layer_norm")
        | _linear("q_proj", "self_attn.q_proj")
        | _linear("k_proj", "self_attn.k_proj")
        | _linear("v_proj", "self_attn.v_proj")
        | _linear("o_proj", "self_attn.out_proj")
        | _norm("mlp_norm", "final_layer_norm")
        | _linear("up_proj", "fc1")
        | _linear("down_proj", "fc2")
    )
    return (
        {
            "embedding.embedding": Source("embed_tokens.weight", as_is),
            "position_embedding.embedding": Source(
                "embed_positions.weight", lambda x: x[OPT_RESERVED_POSITIONS:]
            ),
        }
        | _in_layers(layer, "layers")
        | _norm("final_norm", "final_layer_norm")
        | _linear("lm_head", "lm_head")
    )


def _gpt2(config: ModelConfig) -> Table:
    layer = (
        _norm("attention_norm", "ln_1")
        | _linear("q_proj", "attn.c_attn", partial(third, index=0), in_first=True)
        | _linear("k_proj", "attn.c_attn", partial(third, index=1), in_first=True)
        | _linear("v_proj", "attn.c_attn", partial(third, index=2), in_first=True)
        | _linear("o_proj", "attn.c_proj", in_first=True)
        | _norm("mlp_norm", "ln_2")
        | _linear("up_proj", "mlp.c_fc", in_first=True)
        | _linear("down_proj", "mlp.c_proj", in_first=True)
    )
    return (
        {
            "embedding.embedding": Source("wte.weight", as_is),
            "position_embedding.embedding": Source("wpe.weight", as_is),
        }
        | _in_layers(layer, "h")
        | _norm("final_norm", "ln_f")
        | _linear("lm_head", "lm_head")
    )


def gguf_table(config: ModelConfig) -> Table:
    """Llama (Mistral too), Qwen and Gemma; the last's norms are stored as 1 + w."""
    q_steps: tuple[Convert, ...] = ()
    k_steps: tuple[Convert, ...] = ()
    if config.family == "llama":
        q_steps = (partial(half_split, heads=config.num_heads),)
        k_steps = (partial(half_split, heads=config.num_kv_heads),)
    layer = (
        _norm("attention_norm", "attn_norm")
        | _linear("q_proj", "attn_q", *q_steps)
        | _linear("k_proj", "attn_k", *k_steps)
        | _linear("v_proj", "attn_v")
        | _linear("o_proj", "attn_output")
        | _norm("q_norm", "attn_q_norm")
        | _norm("k_norm", "attn_k_norm")
        | _norm("post_attention_norm", "post_attention_norm")
        | _norm("mlp_norm", "ffn_norm")
        | _linear("gate_proj", "ffn_gate")
        | _linear("up_proj", "ffn_up")
        | _linear("down_proj", "ffn_down")
        | _norm("post_mlp_norm", "post_ffw_norm")
    )
    return (
        {"embedding.embedding": Source("token_embd.weight", as_is)}
        | _in_layers(layer, "blk")
        | _norm("final_norm", "output_norm")
        | _linear("lm_head", "output")
    )


def hf_table(config: ModelConfig) -> Table:
    """The table for a Hugging Face checkpoint of `config.family`."""
    return {"opt": _opt, "gpt2": _gpt2}.get(config.family, _rotary)(config)


def unused_names(config: ModelConfig) -> re.Pattern:
    """Tensors that a file may hold though no parameter comes from them: buffers, the
    vision part of a Gemma 3, and an output head where the embedding serves as one."""
    patterns = [
        r"rope_freqs\.weight",
        r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"h\.\d+\.attn\.(masked_)?bias",
    ]
    if config.family == "gemma3":
        patterns.append(r"(vision_tower|multi_modal_projector)\..*")
    if config.tied_embeddings:
        patterns.append(r"lm_head\.weight")
    return re.compile("|".join(patterns))
