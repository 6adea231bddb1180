"""What most families of a Hugging Face `config.json` have in common."""

from typing import Any

from paxkv.models.config import FULL_ATTENTION, ModelConfig
from paxkv.models.hf_fields import (
    Fields,
    activation,
    check_layer_types,
    require,
    token_ids,
)
from paxkv.models.hf_rope import rope


def rotary_config(fields: Fields, **settings: Any) -> ModelConfig:
    """A family with RMS norms, RoPE and a gated MLP; `settings` are its own."""
    check_layer_types(fields)
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    head_dim = fields.get("head_dim") or hidden // heads
    max_context = fields["max_position_embeddings"]
    if "rope" not in settings:
        require(fields, "partial_rotary_factor", 1.0, "choose another model")
        settings["rope"] = rope(
            fields.get("rope_parameters"),
            fields.get("rope_scaling"),
            fields.get("rope_theta"),
            default_theta=10_000.0,
            max_context=max_context,
        )
    common: dict[str, Any] = dict(
        family=fields.get("model_type"),
        vocab_size=fields["vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["intermediate_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_context=max_context,
        norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        activation=activation(fields, "hidden_activation", "hidden_act", default="silu"),
        layer_windows=(FULL_ATTENTION,) * fields["num_hidden_layers"],
        attention_scale=head_dim**-0.5,
        tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
        bos_token_id=fields.get("bos_token_id"),
        eos_token_ids=token_ids(fields.get("eos_token_id")),
    )
    return ModelConfig(**(common | settings))
