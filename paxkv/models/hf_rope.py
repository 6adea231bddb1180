"""RoPE from the fields of a Hugging Face `config.json`."""

import math
from typing import Any

from paxkv.models.config import RopeConfig
from paxkv.models.field_rules import COUNT, FLAG, NOT_NEGATIVE, POSITIVE
from paxkv.models.hf_fields import Fields, check_fields, require

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ROPE_RULES = dict(
    rope_theta=POSITIVE,
    factor=POSITIVE,
    low_freq_factor=POSITIVE,
    high_freq_factor=POSITIVE,
    original_max_position_embeddings=COUNT,
    beta_fast=POSITIVE,
    beta_slow=POSITIVE,
    attention_factor=POSITIVE,
    mscale=NOT_NEGATIVE,
    mscale_all_dim=NOT_NEGATIVE,
    truncate=FLAG,
)


def rope(
    new: Fields | None,
    old: Fields | None,
    old_theta: Any,
    *,
    default_theta: float,
    max_context: int,
) -> RopeConfig:
    """From both spellings, which may stand beside each other if they agree.

    Args:
      new: `rope_parameters` of transformers 5, or the part of it for one kind of layer.
      old: `rope_scaling` of transformers 4, beside which `old_theta` has a field.
    """
    theta = (new or old or {}).get("rope_theta") or old_theta or default_theta
    found = _one_rope(new or old or {}, theta, max_context)
    if old_theta not in (None, theta) or (
        new and old and _one_rope(old, theta, max_context) != found
    ):
        raise ValueError(
            f"rope_parameters={new} contradict rope_scaling={old} and a theta of "
            f"{old_theta}; remove the spelling that does not belong to the weights."
        )
    return found


def _one_rope(parameters: Fields, theta: Any, max_context: int) -> RopeConfig:
    check_fields(parameters, ROPE_RULES)
    theta = float(parameters.get("rope_theta") or theta)
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"{rope_type=} is not supported, only {', '.join(ROPE_TYPES)} are; use the "
            "model without its context extension (remove rope_scaling from config.json)."
        )
    require(parameters, "partial_rotary_factor", 1.0, "choose another model")
    if rope_type == "default":
        return RopeConfig(theta=theta)
    original = int(parameters.get("original_max_position_embeddings") or max_context)
    if rope_type == "yarn":
        return _yarn(parameters, theta, original, max_context)
    factor = float(parameters["factor"])
    if rope_type == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=factor)
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=factor,
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_context=original,
    )


def _yarn(parameters: Fields, theta: float, original: int, max_context: int) -> RopeConfig:
    """Peng et al. 2023, equations 21 to 23, with DeepSeek's two factors of the last."""
    factor = float(parameters.get("factor") or max_context / original)
    over, under = parameters.get("mscale"), parameters.get("mscale_all_dim")
    magnitude = parameters.get("attention_factor")
    if magnitude is None and over and under:
        magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
    elif magnitude is None:
        magnitude = yarn_magnitude(factor, 1.0)
    truncate = parameters.get("truncate")
    return RopeConfig(
        theta=theta,
        scaling="yarn",
        factor=factor,
        low_freq_factor=float(parameters.get("beta_slow") or 1),
        high_freq_factor=float(parameters.get("beta_fast") or 32),
        original_context=original,
        magnitude=float(magnitude),
        whole_pairs=True if truncate is None else truncate,
    )


def yarn_magnitude(factor: float, share: float) -> float:
    """What makes up for the flatter logits of a longer context."""
    return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0
