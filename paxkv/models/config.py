"""What one decoder needs to know to be any of the supported model families."""

from dataclasses import dataclass
from typing import Literal, get_args, no_type_check

from paxkv.models.field_rules import (
    COUNT,
    FLAG,
    INDEX,
    POSITIVE,
    Rule,
    check_rules,
    list_of,
    one_of,
    optional,
)
from paxkv.models.part_configs import ExpertsConfig, LatentConfig, RopeConfig

Family = Literal[
    "deepseek_v2",
    "deepseek_v3",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama",
    "mistral",
    "opt",
    "qwen2",
    "qwen3",
]
Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

FULL_ATTENTION = 0  # value of `layer_windows` for a layer that sees the whole context


@no_type_check  # values come from files: `__post_init__` checks them, in tests as well
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and switches of a decoder-only transformer.

    Norm weights are plain multipliers: a family that stores `w` and multiplies by
    `1 + w` is converted when its weights are loaded, and so are position tables with
    unused leading rows.

    Latent attention looks like one kv head, whose size is that of a token's row.
    """

    family: Family
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
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    layer_windows: tuple[int, ...] = ()  # tokens per layer, FULL_ATTENTION = unbounded
    attention_scale: float
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    embedding_scale: float = 1.0
    tied_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_rules({name: getattr(self, name) for name in MODEL_RULES}, MODEL_RULES)
        token = Rule(
            f"below vocab_size={self.vocab_size}", lambda token: token < self.vocab_size
        )
        check_rules(
            dict(bos_token_id=self.bos_token_id, eos_token_ids=self.eos_token_ids),
            dict(bos_token_id=optional(token), eos_token_ids=list_of(token)),
        )
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
        if self.latent is not None:
            self._check_latent(self.latent)
        if self.experts is not None and self.experts.first_layer >= self.num_layers:
            raise ValueError(
                f"first_layer={self.experts.first_layer} of the experts must be below "
                f"num_layers={self.num_layers}; check the model's config."
            )

    def _check_latent(self, latent: LatentConfig) -> None:
        if self.rope is None:
            raise ValueError("rope=None with latent attention, which needs it; give one.")
        row = latent.kv_rank + latent.rope_dim
        if (self.num_kv_heads, self.head_dim) != (1, row):
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} of head_dim={self.head_dim} must be 1 "
                f"of kv_rank + rope_dim = {row} with latent attention; correct them."
            )

    @property
    def rope_dim(self) -> int:
        """Numbers of a head that RoPE rotates."""
        return self.head_dim if self.latent is None else self.latent.rope_dim


ROPE = Rule("the fields of a RopeConfig", lambda value: isinstance(value, RopeConfig))
LATENT = Rule("the fields of a LatentConfig", lambda v: isinstance(v, LatentConfig))
EXPERTS = Rule("the fields of an ExpertsConfig", lambda v: isinstance(v, ExpertsConfig))
MODEL_RULES = dict(
    family=one_of(*get_args(Family)),
    vocab_size=COUNT,
    hidden_size=COUNT,
    intermediate_size=COUNT,
    num_layers=COUNT,
    num_heads=COUNT,
    num_kv_heads=COUNT,
    head_dim=COUNT,
    max_context=COUNT,
    norm=one_of(*get_args(Norm)),
    norm_eps=POSITIVE,
    activation=one_of(*get_args(Activation)),
    gated_mlp=FLAG,
    qkv_bias=FLAG,
    output_bias=FLAG,
    mlp_bias=FLAG,
    qk_norm=FLAG,
    post_norms=FLAG,
    rope=optional(ROPE),
    local_rope=optional(ROPE),
    latent=optional(LATENT),
    experts=optional(EXPERTS),
    layer_windows=list_of(INDEX),
    attention_scale=POSITIVE,
    attention_soft_cap=optional(POSITIVE),
    final_soft_cap=optional(POSITIVE),
    embedding_scale=POSITIVE,
    tied_embeddings=FLAG,
    bos_token_id=optional(INDEX),
    eos_token_ids=list_of(INDEX),
)
