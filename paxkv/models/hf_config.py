"""Hugging Face `config.json` to `ModelConfig`.

Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`) and transformers 5
(`rope_parameters`, `layer_types`). A field that the file leaves out has the default
that transformers gives it. What the decoder cannot compute is refused by name.
"""

from typing import Any

from paxkv.models.config import FULL_ATTENTION, ModelConfig
from paxkv.models.hf_deepseek import deepseek_v2_config, deepseek_v3_config
from paxkv.models.hf_defaults import (
    GEMMA2_DEFAULTS,
    GEMMA3_DEFAULTS,
    GPT2_DEFAULTS,
    LLAMA_DEFAULTS,
    MISTRAL_DEFAULTS,
    OPT_DEFAULTS,
    QWEN2_DEFAULTS,
    QWEN3_DEFAULTS,
)
from paxkv.models.hf_fields import (
    Fields,
    activation,
    check_fields,
    require,
    token_ids,
    windows,
)
from paxkv.models.hf_rope import rope
from paxkv.models.hf_rotary import rotary_config


def config_from_hf(fields: Fields) -> ModelConfig:
    """Reads the fields of one `config.json`.

    Raises:
      ValueError: the family or one of its options is not supported, or a value is of
        the wrong type or range; the message names the field, its value and what is
        supported.
    """
    model_type = fields.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"{model_type=} is not supported; choose a model of one of "
            f"{', '.join(sorted(FAMILIES))}."
        )
    require(fields, "quantization_config", None, "dequantise the weights first")
    check_fields(fields)
    return FAMILIES[model_type](fields)


def _llama(fields: Fields) -> ModelConfig:
    has_bias = bool(fields.get("attention_bias", False))
    return rotary_config(
        LLAMA_DEFAULTS | fields,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(fields.get("mlp_bias", False)),
    )


def _mistral(fields: Fields) -> ModelConfig:
    fields = MISTRAL_DEFAULTS | fields
    # a window holds for every layer of this family, whatever `layer_types` says
    window = fields["sliding_window"] or FULL_ATTENTION
    return rotary_config(fields, layer_windows=(window,) * fields["num_hidden_layers"])


def _qwen_windows(fields: Fields) -> tuple[int, ...]:
    slides = bool(fields.get("use_sliding_window")) and fields["sliding_window"]
    return windows(fields, lambda layer: slides and layer >= fields["max_window_layers"])


def _qwen2(fields: Fields) -> ModelConfig:
    fields = QWEN2_DEFAULTS | fields
    return rotary_config(fields, qkv_bias=True, layer_windows=_qwen_windows(fields))


def _qwen3(fields: Fields) -> ModelConfig:
    fields = QWEN3_DEFAULTS | fields
    has_bias = bool(fields.get("attention_bias", False))
    return rotary_config(
        fields,
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        layer_windows=_qwen_windows(fields),
    )


def _gemma(fields: Fields, *, global_every: int, **settings: Any) -> ModelConfig:
    """One layer in `global_every`, the last of them, sees the whole context."""
    require(fields, "use_bidirectional_attention", False, "choose a causal model")
    has_bias = bool(fields.get("attention_bias", False))
    return rotary_config(
        fields,
        qkv_bias=has_bias,
        output_bias=has_bias,
        post_norms=True,
        layer_windows=windows(fields, lambda layer: (layer + 1) % global_every != 0),
        attention_scale=fields["query_pre_attn_scalar"] ** -0.5,
        attention_soft_cap=fields["attn_logit_softcapping"],
        final_soft_cap=fields["final_logit_softcapping"],
        embedding_scale=fields["hidden_size"] ** 0.5,
        **settings,
    )


def _gemma2(fields: Fields) -> ModelConfig:
    return _gemma(GEMMA2_DEFAULTS | fields, global_every=2)


def _gemma3_text(fields: Fields) -> ModelConfig:
    fields = GEMMA3_DEFAULTS | fields
    max_context = fields["max_position_embeddings"]
    by_type = fields.get("rope_parameters") or {}
    return _gemma(
        fields,
        family="gemma3",
        global_every=fields.get("sliding_window_pattern")
        or fields.get("_sliding_window_pattern")
        or 6,
        qk_norm=True,
        rope=rope(
            by_type.get("full_attention"),
            fields.get("rope_scaling"),
            fields.get("rope_theta"),
            default_theta=1e6,
            max_context=max_context,
        ),
        local_rope=rope(
            by_type.get("sliding_attention"),
            None,
            fields.get("rope_local_base_freq"),
            default_theta=1e4,
            max_context=max_context,
        ),
    )


def _gemma3(fields: Fields) -> ModelConfig:
    """Of a model of text and images, the language model."""
    names = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    outer = {name: fields[name] for name in names if name in fields}
    text = fields["text_config"] | outer
    check_fields(text)
    return _gemma3_text(text)


def _opt(fields: Fields) -> ModelConfig:
    fields = OPT_DEFAULTS | fields
    other = "choose another size of the family"
    require(fields, "do_layer_norm_before", True, f"{other} (350m norms after)")
    require(fields, "word_embed_proj_dim", fields["hidden_size"], other)
    require(fields, "_remove_final_layer_norm", False, other)
    require(fields, "layer_norm_elementwise_affine", True, other)
    return _learned_positions(
        family="opt",
        vocab_size=fields["vocab_size"],
        hidden_size=fields["hidden_size"],
        intermediate_size=fields["ffn_dim"],
        num_layers=fields["num_hidden_layers"],
        num_heads=fields["num_attention_heads"],
        max_context=fields["max_position_embeddings"],
        norm_eps=1e-5,
        activation=activation(fields, "activation_function", default="relu"),
        has_bias=bool(fields["enable_bias"]),
        fields=fields,
    )


def _gpt2(fields: Fields) -> ModelConfig:
    fields = GPT2_DEFAULTS | fields
    plain = "choose a model with plain attention"
    require(fields, "scale_attn_by_inverse_layer_idx", False, plain)
    require(fields, "scale_attn_weights", True, plain)
    require(fields, "add_cross_attention", False, plain)
    return _learned_positions(
        family="gpt2",
        vocab_size=fields["vocab_size"],
        hidden_size=fields["n_embd"],
        intermediate_size=fields.get("n_inner") or 4 * fields["n_embd"],
        num_layers=fields["n_layer"],
        num_heads=fields["n_head"],
        max_context=fields["n_positions"],
        norm_eps=float(fields["layer_norm_epsilon"]),
        activation=activation(fields, "activation_function", default="gelu_new"),
        has_bias=True,
        fields=fields,
    )


def _learned_positions(*, fields: Fields, has_bias: bool, **settings: Any) -> ModelConfig:
    """What OPT and GPT-2 have in common: LayerNorm, a position table, a plain MLP."""
    heads = settings["num_heads"]
    head_dim = settings["hidden_size"] // heads
    return ModelConfig(
        num_kv_heads=heads,
        head_dim=head_dim,
        norm="layer",
        gated_mlp=False,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        layer_windows=(FULL_ATTENTION,) * settings["num_layers"],
        attention_scale=head_dim**-0.5,
        tied_embeddings=bool(fields.get("tie_word_embeddings", True)),
        bos_token_id=fields["bos_token_id"],
        eos_token_ids=token_ids(fields["eos_token_id"]),
        **settings,
    )


FAMILIES = {
    "deepseek_v2": deepseek_v2_config,
    "deepseek_v3": deepseek_v3_config,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3_text,
    "opt": _opt,
    "gpt2": _gpt2,
}
