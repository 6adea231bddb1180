"""DeepSeek-V2 and V3 from the fields of a Hugging Face `config.json`."""

from typing import Any

from paxkv.models.config import ExpertsConfig, LatentConfig, ModelConfig
from paxkv.models.hf_defaults import DEEPSEEK_V2_DEFAULTS, DEEPSEEK_V3_DEFAULTS
from paxkv.models.hf_fields import Fields, require
from paxkv.models.hf_rope import rope, yarn_magnitude
from paxkv.models.hf_rotary import rotary_config

OTHER = "choose another model"
TOPK_METHODS = ("greedy", "group_limited_greedy")


def deepseek_v2_config(fields: Fields) -> ModelConfig:
    """Experts by softmax scores, of the best groups if `topk_method` says so."""
    fields = DEEPSEEK_V2_DEFAULTS | fields
    require(fields, "scoring_func", "softmax", OTHER)
    require(fields, "norm_topk_prob", False, OTHER)
    require(fields, "mlp_bias", False, OTHER)
    method = fields["topk_method"]
    if method not in TOPK_METHODS:
        raise ValueError(
            f"topk_method={method!r} of a 'deepseek_v2' model is not supported, only "
            f"{' and '.join(TOPK_METHODS)} are; {OTHER}."
        )
    groups = {} if method == "greedy" else _groups(fields)
    return _deepseek(fields, scoring="softmax", **groups)


def deepseek_v3_config(fields: Fields) -> ModelConfig:
    """Experts by sigmoid scores and a bias, always of the best groups."""
    fields = DEEPSEEK_V3_DEFAULTS | fields
    require(fields, "scoring_func", "sigmoid", OTHER)
    require(fields, "topk_method", "noaux_tc", OTHER)
    require(fields, "rope_interleave", True, OTHER)
    normalize = bool(fields["norm_topk_prob"])
    return _deepseek(fields, scoring="sigmoid", normalize=normalize, **_groups(fields))


def _groups(fields: Fields) -> dict[str, Any]:
    return dict(num_groups=fields["n_group"], num_active_groups=fields["topk_group"])


def _deepseek(fields: Fields, **routing: Any) -> ModelConfig:
    heads = fields["num_attention_heads"]
    require(fields, "num_key_value_heads", heads, "every head must have its own K and V")
    require(fields, "moe_layer_freq", 1, "choose a model with experts in every layer")
    latent = LatentConfig(
        kv_rank=fields["kv_lora_rank"],
        query_rank=fields["q_lora_rank"],
        nope_dim=fields["qk_nope_head_dim"],
        rope_dim=fields["qk_rope_head_dim"],
        value_dim=fields["v_head_dim"],
    )
    experts = ExpertsConfig(
        first_layer=fields["first_k_dense_replace"],
        num_experts=fields["n_routed_experts"],
        num_active=fields["num_experts_per_tok"],
        num_shared=fields["n_shared_experts"],
        intermediate_size=fields["moe_intermediate_size"],
        scale=float(fields["routed_scaling_factor"]),
        **routing,
    )
    new, old = fields.get("rope_parameters"), fields.get("rope_scaling")
    rope_config = rope(
        new,
        old,
        fields.get("rope_theta"),
        default_theta=10_000.0,
        max_context=fields["max_position_embeddings"],
    )
    # where `mscale_all_dim` is given, the whole logit grows, not the rotated part alone
    share = (new or old or {}).get("mscale_all_dim") or 0.0
    magnitude = yarn_magnitude(rope_config.factor, share)
    has_bias = bool(fields.get("attention_bias", False))
    return rotary_config(
        fields,
        rope=rope_config,
        latent=latent,
        experts=experts,
        num_kv_heads=1,
        head_dim=latent.kv_rank + latent.rope_dim,
        attention_scale=(latent.nope_dim + latent.rope_dim) ** -0.5 * magnitude**2,
        qkv_bias=has_bias,
        output_bias=has_bias,
    )
