"""Reading single facts from the fields of a Hugging Face `config.json`."""

from collections.abc import Callable
from typing import Any

from paxkv.models.config import FULL_ATTENTION
from paxkv.models.field_rules import (
    COUNT,
    FLAG,
    INDEX,
    POSITIVE,
    Rule,
    check_rules,
    list_of,
)

Fields = dict[str, Any]

ACTIVATION_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
OBJECT = Rule("an object", lambda value: isinstance(value, dict))
NAMES = list_of(Rule("a string", lambda value: isinstance(value, str)))
RULES = dict(
    vocab_size=COUNT,
    hidden_size=COUNT,
    intermediate_size=COUNT,
    ffn_dim=COUNT,
    num_hidden_layers=COUNT,
    num_attention_heads=COUNT,
    num_key_value_heads=COUNT,
    head_dim=COUNT,
    max_position_embeddings=COUNT,
    n_embd=COUNT,
    n_head=COUNT,
    n_inner=COUNT,
    n_layer=COUNT,
    n_positions=COUNT,
    sliding_window=INDEX,
    max_window_layers=INDEX,
    sliding_window_pattern=COUNT,
    _sliding_window_pattern=COUNT,
    layer_types=NAMES,
    rms_norm_eps=POSITIVE,
    layer_norm_epsilon=POSITIVE,
    query_pre_attn_scalar=POSITIVE,
    attn_logit_softcapping=POSITIVE,
    final_logit_softcapping=POSITIVE,
    rope_theta=POSITIVE,
    rope_local_base_freq=POSITIVE,
    rope_parameters=OBJECT,
    rope_scaling=OBJECT,
    attention_bias=FLAG,
    mlp_bias=FLAG,
    enable_bias=FLAG,
    tie_word_embeddings=FLAG,
    use_sliding_window=FLAG,
    kv_lora_rank=COUNT,
    q_lora_rank=COUNT,
    qk_nope_head_dim=COUNT,
    qk_rope_head_dim=COUNT,
    v_head_dim=COUNT,
    first_k_dense_replace=INDEX,
    n_routed_experts=COUNT,
    n_shared_experts=COUNT,
    num_experts_per_tok=COUNT,
    moe_intermediate_size=COUNT,
    n_group=COUNT,
    topk_group=COUNT,
    norm_topk_prob=FLAG,
    routed_scaling_factor=POSITIVE,
)


def check_fields(fields: Fields, rules: dict[str, Rule] = RULES) -> None:
    """Refuses values of the wrong type or range; a null has its own meaning per field."""
    check_rules({name: value for name, value in fields.items() if value is not None}, rules)


def check_layer_types(fields: Fields) -> None:
    """Refuses a list of another length; families that do not read it have it, too."""
    types, num_layers = fields.get("layer_types"), fields["num_hidden_layers"]
    if types is not None and len(types) != num_layers:
        raise ValueError(
            f"layer_types names {len(types)} layers, the model has "
            f"num_hidden_layers={num_layers}; download its config again."
        )


def require(fields: Fields, name: str, supported: Any, remedy: str) -> None:
    """Refuses any value of a field but the one whose meaning the decoder has."""
    value = fields.get(name)
    if value is not None and value != supported:
        raise ValueError(
            f"{name}={value!r} of a {fields.get('model_type')!r} model is not supported, "
            f"only {supported!r} is; {remedy}."
        )


def activation(fields: Fields, *names: str, default: str) -> str:
    """Our name of the first activation that one of the fields `names` gives."""
    given = (fields.get(name) for name in names)
    name = next((value for value in given if value is not None), default)
    if name not in ACTIVATION_NAMES:
        raise ValueError(
            f"activation {name!r} is not supported; choose a model with one of "
            f"{', '.join(ACTIVATION_NAMES)}."
        )
    return ACTIVATION_NAMES[name]


def windows(fields: Fields, is_sliding: Callable[[int], bool]) -> tuple[int, ...]:
    """Tokens per layer: by `layer_types` if given, else where `is_sliding(layer)`."""
    types = fields.get("layer_types")
    if types is None:
        types = [
            "sliding_attention" if is_sliding(layer) else "full_attention"
            for layer in range(fields["num_hidden_layers"])
        ]
    known = {
        "full_attention": FULL_ATTENTION,
        "sliding_attention": fields["sliding_window"],
    }
    for name in types:
        if known.get(name) is None:
            raise ValueError(
                f"layer_types names {name!r}, with sliding_window="
                f"{fields['sliding_window']}; supported are full_attention, and "
                "sliding_attention with a window in tokens."
            )
    return tuple(known[name] for name in types)


def token_ids(value: Any) -> tuple[Any, ...]:
    """One id, several or none, as a tuple; `ModelConfig` checks them."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
