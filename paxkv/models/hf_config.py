"""Hugging Face `config.json` to `ModelConfig`.

Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`) and transformers 5
(`rope_parameters`, `layer_types`). A field that the file leaves out has the default
that transformers gives it. What the decoder cannot compute is refused by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

from paxkv.models.config import FULL_ATTENTION, ModelConfig, RopeConfig

Fields = Mapping[str, Any]

ACTIVATION_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ROPE_TYPES = ("default", "linear", "llama3")


def config_from_hf(fields: Fields) -> ModelConfig:
    """Reads the fields of one `config.json`.

    Raises:
      ValueError: the family or one of its options is not supported; the message names
        the field, its value and what is supported.
    """
    fields = {key: value for key, value in fields.items() if value is not None}
    model_type = fields.get("model_type")
    if model_type not in _FAMILIES:
        raise ValueError(
            f"{model_type=} is not supported; convert or choose a model of one of "
            f"{', '.join(sorted(_FAMILIES))}."
        )
    _require(fields, "quantization_config", None, "dequantise the weights first")
    return _FAMILIES[model_type](fields)


def _require(fields: Fields, name: str, supported: Any, remedy: str) -> None:
    """Refuses any value of a field but the one whose meaning the decoder has."""
    value = fields.get(name, supported)
    if value != supported:
        family = fields.get("model_type")
        raise ValueError(
            f"{name}={value!r} of a {family!r} model is not supported, only "
            f"{supported!r} is; {remedy}."
        )


def _activation(fields: Fields, *names: str, default: str) -> str:
    name = next((fields[name] for name in names if name in fields), default)
    if name not in ACTIVATION_NAMES:
        raise ValueError(
            f"activation {name!r} is not supported; choose a model with one of "
            f"{', '.join(ACTIVATION_NAMES)}."
        )
    return ACTIVATION_NAMES[name]


def _rope(parameters: Fields, theta: float, max_context: int) -> RopeConfig:
    """From `rope_parameters` or `rope_scaling`; `theta` where they name none."""
    theta = float(parameters.get("rope_theta", theta))
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"{rope_type=} is not supported, only {', '.join(ROPE_TYPES)} are; use the "
            "model without its context extension (remove rope_scaling from config.json)."
        )
    _require(parameters, "partial_rotary_factor", 1.0, "choose another model")
    if rope_type == "default":
        return RopeConfig(theta=theta)
    factor = float(parameters["factor"])
    if rope_type == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=factor)
    original = parameters.get("original_max_position_embeddings", max_context)
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=factor,
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_context=int(original),
    )


def _flat_rope(fields: Fields, max_context: int) -> RopeConfig:
    _require(fields, "partial_rotary_factor", 1.0, "choose another model")
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    return _rope(parameters, fields.get("rope_theta", 10_000.0), max_context)


def _windows(fields: Fields, sliding: Callable[[int], bool], default: int | None) -> tuple:
    """Tokens per layer: from `layer_types` if given, else where `sliding(layer)`."""
    num_layers = fields["num_hidden_layers"]
    types = fields.get("layer_types")
    if types is None:
        types = [
            "sliding_attention" if sliding(layer) else "full_attention"
            for layer in range(num_layers)
        ]
    known = {
        "full_attention": FULL_ATTENTION,
        "sliding_attention": fields.get("sliding_window", default),
    }
    for name in types:
        if known.get(name) is None:
            raise ValueError(
                f"layer_types names {name!r}, with sliding_window="
                f"{fields.get('sliding_window')}; supported are full_attention, and "
                "sliding_attention with a window in tokens."
            )
    return tuple(known[name] for name in types)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _rotary_family(
    fields: Fields, *, defaults: Fields, activation: str = "silu", **settings: Any
) -> ModelConfig:
    """What all families with RMS norms, RoPE and a gated MLP have in common."""
    fields = {**defaults, **fields}
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    head_dim = fields.get("head_dim", hidden // heads)
    max_context = fields["max_position_embeddings"]
    common = dict(
        family=fields["model_type"],
        vocab_size=fields["vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["intermediate_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads", heads),
        head_dim=head_dim,
        max_context=max_context,
        norm_eps=fields.get("rms_norm_eps", 1e-6),
        activation=activation,
        layer_windows=(FULL_ATTENTION,) * fields["num_hidden_layers"],
        attention_scale=head_dim**-0.5,
        tied_embeddings=fields.get("tie_word_embeddings", False),
        bos_token_id=fields.get("bos_token_id"),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
    )
    settings.setdefault("rope", _flat_rope(fields, max_context))
    return ModelConfig(**(common | settings))


LLAMA_DEFAULTS = dict(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=2,
)
MISTRAL_DEFAULTS = LLAMA_DEFAULTS | dict(
    intermediate_size=14_336, num_key_value_heads=8, max_position_embeddings=131_072
)
QWEN_DEFAULTS = dict(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=22_016,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    max_position_embeddings=32_768,
)
GEMMA_DEFAULTS = dict(
    vocab_size=256_000,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=8192,
    bos_token_id=2,
    eos_token_id=1,
    tie_word_embeddings=True,
)


def _llama(fields: Fields) -> ModelConfig:
    has_bias = fields.get("attention_bias", False)
    return _rotary_family(
        fields,
        defaults=LLAMA_DEFAULTS,
        activation=_activation(fields, "hidden_act", default="silu"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.get("mlp_bias", False),
    )


def _mistral(fields: Fields) -> ModelConfig:
    # in this family a window holds for every layer, whatever `layer_types` says
    num_layers = fields.get("num_hidden_layers", MISTRAL_DEFAULTS["num_hidden_layers"])
    return _rotary_family(
        fields,
        defaults=MISTRAL_DEFAULTS,
        activation=_activation(fields, "hidden_act", default="silu"),
        layer_windows=(fields.get("sliding_window", FULL_ATTENTION),) * num_layers,
    )


def _qwen(fields: Fields, *, qk_norm: bool) -> ModelConfig:
    defaults = QWEN_DEFAULTS | (dict(head_dim=128) if qk_norm else {})
    sliding = fields.get("use_sliding_window", False)
    first = fields.get("max_window_layers", 28)
    has_bias = fields.get("attention_bias", False) if qk_norm else True
    return _rotary_family(
        fields,
        defaults=defaults,
        activation=_activation(fields, "hidden_act", default="silu"),
        qkv_bias=has_bias,
        output_bias=has_bias and qk_norm,
        qk_norm=qk_norm,
        layer_windows=_windows(
            {**defaults, **fields}, lambda layer: sliding and layer >= first, default=4096
        ),
    )


def _gemma(fields: Fields, *, defaults: Fields, pattern: int, **settings: Any):
    """`pattern`: every so many layers one attends to the whole context."""
    fields = {**defaults, **fields}
    _require(fields, "use_bidirectional_attention", False, "choose a causal model")
    has_bias = fields.get("attention_bias", False)
    return _rotary_family(
        fields,
        defaults={},
        activation=_activation(
            fields, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh"
        ),
        qkv_bias=has_bias,
        output_bias=has_bias,
        post_norms=True,
        layer_windows=_windows(fields, lambda layer: (layer + 1) % pattern != 0, 4096),
        attention_scale=fields.get("query_pre_attn_scalar", 256) ** -0.5,
        embedding_scale=fields["hidden_size"] ** 0.5,
        **settings,
    )


def _gemma2(fields: Fields) -> ModelConfig:
    return _gemma(
        fields,
        defaults=GEMMA_DEFAULTS,
        pattern=2,
        attention_soft_cap=fields.get("attn_logit_softcapping", 50.0),
        final_soft_cap=fields.get("final_logit_softcapping", 30.0),
    )


def _gemma3_text(fields: Fields) -> ModelConfig:
    defaults = GEMMA_DEFAULTS | dict(vocab_size=262_208, max_position_embeddings=131_072)
    max_context = fields.get("max_position_embeddings", 131_072)
    nested = fields.get("rope_parameters", {})
    scaled = nested.get("full_attention") or fields.get("rope_scaling", {})
    local = nested.get("sliding_attention") or {}
    pattern = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern", 6))
    return _gemma(
        fields,
        defaults=defaults,
        pattern=pattern,
        qk_norm=True,
        rope=_rope(scaled, fields.get("rope_theta", 1e6), max_context),
        local_rope=_rope(local, fields.get("rope_local_base_freq", 1e4), max_context),
        attention_soft_cap=fields.get("attn_logit_softcapping"),
        final_soft_cap=fields.get("final_logit_softcapping"),
    )


def _gemma3(fields: Fields) -> ModelConfig:
    """Text and images: only the language model is read."""
    text = {
        key: value for key, value in fields["text_config"].items() if value is not None
    }
    outer = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    shared = {key: fields[key] for key in outer if key in fields}
    return _gemma3_text(shared | text | {"model_type": "gemma3_text"} | shared)
