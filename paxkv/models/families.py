"""Which tensor of a file holds which parameter of the decoder, per family.

Names are as in Hugging Face files without the prefixes that name enclosing modules
(`model.`, `transformer.`, ...), or as in GGUF files; `{layer}` is the layer's index,
`{expert}` that of an expert.
"""

import re
from functools import partial

from paxkv.models.config import ModelConfig
from paxkv.models.sources import (
    Convert,
    Source,
    Table,
    add_one,
    as_is,
    half_split,
    half_split_last,
    in_layers,
    inside,
    linear,
    norm,
    part_of_heads,
    third,
    transpose,
)
from paxkv.models.stacks import DENSE_LAYERS

OPT_RESERVED_POSITIONS = 2  # leading rows of its table that no token uses


def _rotary(config: ModelConfig) -> Table:
    """Llama, Mistral, Qwen and, with their own norms, the Gemmas."""
    is_gemma = config.family in ("gemma2", "gemma3")
    around = partial(norm, convert=add_one if is_gemma else as_is)
    mlp_norm = "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"
    layer = (
        around("attention_norm", "input_layernorm")
        | linear("q_proj", "self_attn.q_proj")
        | linear("k_proj", "self_attn.k_proj")
        | linear("v_proj", "self_attn.v_proj")
        | linear("o_proj", "self_attn.o_proj")
        | around("q_norm", "self_attn.q_norm")
        | around("k_norm", "self_attn.k_norm")
        | around("post_attention_norm", "post_attention_layernorm")
        | around("mlp_norm", mlp_norm)
        | linear("gate_proj", "mlp.gate_proj")
        | linear("up_proj", "mlp.up_proj")
        | linear("down_proj", "mlp.down_proj")
        | around("post_mlp_norm", "post_feedforward_layernorm")
    )
    return (
        {"embedding.embedding": Source("embed_tokens.weight", as_is)}
        | in_layers(layer, "layers")
        | around("final_norm", "norm")
        | linear("lm_head", "lm_head")
    )


def _deepseek(config: ModelConfig) -> Table:
    """V2 and V3: latent attention everywhere, experts from some layer on."""
    sizes, heads = config.latent, config.num_heads
    assert sizes is not None
    turned = partial(half_split_last, count=sizes.rope_dim)
    up_k = partial(part_of_heads, heads=heads, start=0, stop=sizes.nope_dim)
    up_v = partial(part_of_heads, heads=heads, start=sizes.nope_dim, stop=None)
    attention = (
        linear("q_proj", "q_proj", partial(turned, heads=heads))
        | linear("q_down_proj", "q_a_proj")
        | norm("q_norm", "q_a_layernorm")
        | linear("q_up_proj", "q_b_proj", partial(turned, heads=heads))
        | linear("kv_down_proj", "kv_a_proj_with_mqa", partial(turned, heads=1))
        | norm("kv_norm", "kv_a_layernorm")
        | linear("k_up_proj", "kv_b_proj", up_k)
        | linear("v_up_proj", "kv_b_proj", up_v)
        | linear("o_proj", "o_proj")
    )
    layer = (
        norm("attention_norm", "input_layernorm")
        | inside(attention, "latent", "self_attn")
        | norm("mlp_norm", "post_attention_layernorm")
    )
    dense = {}
    experts = linear("router", "gate") | {
        "router.bias": Source("gate.e_score_correction_bias", as_is)
    }
    for name in ("gate_proj", "up_proj", "down_proj"):
        dense |= linear(name, f"mlp.{name}")
        experts[name] = Source(f"experts.{{expert}}.{name}.weight", transpose)
        experts |= linear(f"shared_{name}", f"shared_experts.{name}")
    return (
        {"embedding.embedding": Source("embed_tokens.weight", as_is)}
        | in_layers(layer | dense, "layers", DENSE_LAYERS)
        | in_layers(layer | inside(experts, "experts", "mlp"), "layers")
        | norm("final_norm", "norm")
        | linear("lm_head", "lm_head")
    )


def _opt(config: ModelConfig) -> Table:
    layer = (
        norm("attention_norm", "self_attn_layer_norm")
        | linear("q_proj", "self_attn.q_proj")
        | linear("k_proj", "self_attn.k_proj")
        | linear("v_proj", "self_attn.v_proj")
        | linear("o_proj", "self_attn.out_proj")
        | norm("mlp_norm", "final_layer_norm")
        | linear("up_proj", "fc1")
        | linear("down_proj", "fc2")
    )
    return (
        {
            "embedding.embedding": Source("embed_tokens.weight", as_is),
            "position_embedding.embedding": Source(
                "embed_positions.weight", lambda x: x[OPT_RESERVED_POSITIONS:]
            ),
        }
        | in_layers(layer, "layers")
        | norm("final_norm", "final_layer_norm")
        | linear("lm_head", "lm_head")
    )


def _gpt2(config: ModelConfig) -> Table:
    layer = (
        norm("attention_norm", "ln_1")
        | linear("q_proj", "attn.c_attn", partial(third, index=0), in_first=True)
        | linear("k_proj", "attn.c_attn", partial(third, index=1), in_first=True)
        | linear("v_proj", "attn.c_attn", partial(third, index=2), in_first=True)
        | linear("o_proj", "attn.c_proj", in_first=True)
        | norm("mlp_norm", "ln_2")
        | linear("up_proj", "mlp.c_fc", in_first=True)
        | linear("down_proj", "mlp.c_proj", in_first=True)
    )
    return (
        {
            "embedding.embedding": Source("wte.weight", as_is),
            "position_embedding.embedding": Source("wpe.weight", as_is),
        }
        | in_layers(layer, "h")
        | norm("final_norm", "ln_f")
        | linear("lm_head", "lm_head")
    )


def gguf_table(config: ModelConfig) -> Table:
    """Llama (Mistral too), Qwen and Gemma; the last's norms are stored as 1 + w."""
    q_steps: tuple[Convert, ...] = ()
    k_steps: tuple[Convert, ...] = ()
    if config.family == "llama":
        q_steps = (partial(half_split, heads=config.num_heads),)
        k_steps = (partial(half_split, heads=config.num_kv_heads),)
    layer = (
        norm("attention_norm", "attn_norm")
        | linear("q_proj", "attn_q", *q_steps)
        | linear("k_proj", "attn_k", *k_steps)
        | linear("v_proj", "attn_v")
        | linear("o_proj", "attn_output")
        | norm("q_norm", "attn_q_norm")
        | norm("k_norm", "attn_k_norm")
        | norm("post_attention_norm", "post_attention_norm")
        | norm("mlp_norm", "ffn_norm")
        | linear("gate_proj", "ffn_gate")
        | linear("up_proj", "ffn_up")
        | linear("down_proj", "ffn_down")
        | norm("post_mlp_norm", "post_ffw_norm")
    )
    return (
        {"embedding.embedding": Source("token_embd.weight", as_is)}
        | in_layers(layer, "blk")
        | norm("final_norm", "output_norm")
        | linear("lm_head", "output")
    )


def hf_table(config: ModelConfig) -> Table:
    """The table for a Hugging Face checkpoint of `config.family`."""
    tables = {
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "opt": _opt,
        "gpt2": _gpt2,
    }
    return tables.get(config.family, _rotary)(config)


def unused_names(config: ModelConfig) -> re.Pattern:
    """Tensors that a file may hold though no parameter comes from them: buffers, the
    vision part of a Gemma 3, the layer of a DeepSeek-V3 that predicts several tokens, and
    an output head where the embedding serves as one."""
    patterns = [
        r"rope_freqs\.weight",
        r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"h\.\d+\.attn\.(masked_)?bias",
    ]
    if config.family == "gemma3":
        patterns.append(r"(vision_tower|multi_modal_projector)\..*")
    if config.family == "deepseek_v3":
        patterns.append(rf"layers\.{config.num_layers}\..*")
    if config.tied_embeddings:
        patterns.append(r"lm_head\.weight")
    return re.compile("|".join(patterns))
