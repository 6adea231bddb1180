"""What one decoder needs to know to be any of the supported model families."""

from dataclasses import asdict, dataclass
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

Family = Literal["gemma2", "gemma3", "gpt2", "llama", "mistral", "opt", "qwen2", "qwen3"]
Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Scaling = Literal["none", "linear", "llama3"]

FULL_ATTENTION = 0  # value of `layer_windows` for a layer that sees the whole context


@no_type_check  # values come from files: `__post_init__` checks them, in tests as well
@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021), optionally stretched.

    `linear` divides every frequency by `factor`; `llama3` divides only the
    frequencies whose wavelength exceeds `original_context / low_freq_factor` and
    blends up to `original_context / high_freq_factor` (Llama 3.1 model card).
    """

    theta: float
    scaling: Scaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192  # tokens

    def __post_init__(self) -> None:
        check_rules(asdict(self), ROPE_RULES)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must be < "
                f"high_freq_factor={self.high_freq_factor}; check the model's config."
            )


@no_type_check  # as above
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and switches of a decoder-only transformer.

    Norm weights are plain multipliers: a family that stores `w` and multiplies by
    `1 + w` is converted when its weights are loaded, and so are position tables with
    unused leading rows.
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


ROPE_RULES = dict(
    theta=POSITIVE,
    scaling=one_of(*get_args(Scaling)),
    factor=POSITIVE,
    low_freq_factor=POSITIVE,
    high_freq_factor=POSITIVE,
    original_context=COUNT,
)
ROPE = Rule("the fields of a RopeConfig", lambda value: isinstance(value, RopeConfig))
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
    layer_windows=list_of(INDEX),
    attention_scale=POSITIVE,
    attention_soft_cap=optional(POSITIVE),
    final_soft_cap=optional(POSITIVE),
    embedding_scale=POSITIVE,
    tied_embeddings=FLAG,
    bos_token_id=optional(INDEX),
    eos_token_ids=list_of(INDEX),
)
