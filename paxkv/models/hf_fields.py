"""Reading single facts from the fields of a Hugging Face `config.json`."""

from collections.abc import Callable
from typing import Any

from paxkv.models.config import FULL_ATTENTION, RopeConfig

Fields = dict[str, Any]

ACTIVATION_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ROPE_TYPES = ("default", "linear", "llama3")


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


def rope(parameters: Fields | None, *, theta: float, max_context: int) -> RopeConfig:
    """From `rope_parameters` or `rope_scaling`; `theta` where they name none."""
    parameters = parameters or {}
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
    factor = float(parameters["factor"])
    if rope_type == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=factor)
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=factor,
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_context=int(
            parameters.get("original_max_position_embeddings") or max_context
        ),
    )


def windows(fields: Fields, is_sliding: Callable[[int], bool]) -> tuple[int, ...]:
    """Tokens per layer: by `layer_types` if given, else where `is_sliding(layer)`."""
    types = fields.get("layer_types") or [
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


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """One id, several or none, as a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
