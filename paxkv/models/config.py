"""What one decoder needs to know to be any of the supported model families."""

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

FULL_ATTENTION = 0  # value of `layer_windows` for a layer that sees the whole context


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021), optionally stretched.

    `linear` divides every frequency by `factor`; `llama3` divides only the
    frequencies whose wavelength exceeds `original_context / low_freq_factor` and
    blends up to `original_context / high_freq_factor` (Llama 3.1 model card).
    """

    theta: float
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and switches of a decoder-only transformer.

    Norm weights are plain multipliers: a family that stores `w` and multiplies by
    `1 + w` is converted when its weights are loaded, and so are position tables with
    unused leading rows.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int  # tokens
    norm: Norm = "rms"
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before RoPE
    post_norms: bool = False  # norm after attention and after the MLP, before the residual
    rope: RopeConfig | None = None  # None: positions are a learned table
    local_rope: RopeConfig | None = None  # of windowed layers, where it differs
    layer_windows: tuple[int, ...] = ()  # tokens per layer, FULL_ATTENTION = unbounded
    attention_scale: float
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    embedding_scale: float = 1.0
    tied_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads}; check the model's config."
            )
        if len(self.layer_windows) != self.num_layers:
            raise ValueError(
                f"layer_windows names {len(self.layer_windows)} layers, the model has "
                f"num_layers={self.num_layers}; give one window per layer."
            )
