"""Parts of a model's configuration: positions, latent attention, experts."""

from dataclasses import asdict, dataclass
from typing import Literal, get_args, no_type_check

from paxkv.models.field_rules import (
    COUNT,
    FLAG,
    INDEX,
    POSITIVE,
    check_rules,
    one_of,
    optional,
)

Scaling = Literal["none", "linear", "llama3", "yarn"]
Scoring = Literal["softmax", "sigmoid"]


@no_type_check  # values come from files: `__post_init__` checks them, in tests as well
@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021), optionally stretched.

    `linear` divides every frequency by `factor`; `llama3` divides only the
    frequencies whose wavelength exceeds `original_context / low_freq_factor` and
    blends up to `original_context / high_freq_factor` (Llama 3.1 model card). `yarn`
    (Peng et al. 2023, §3.2) does so by the number of a pair, linearly between those that
    turn `high_freq_factor` and `low_freq_factor` times (the paper's β and α) in the
    original context.
    """

    theta: float
    scaling: Scaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192  # tokens
    magnitude: float = 1.0  # of what is rotated; logits grow with its square
    whole_pairs: bool = True  # yarn blends from a pair to a pair, not from between two

    def __post_init__(self) -> None:
        check_rules(asdict(self), ROPE_RULES)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must be < "
                f"high_freq_factor={self.high_freq_factor}; check the model's config."
            )


@no_type_check  # as above
@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, §2.1): sizes of its projections.

    A token keeps one row of `kv_rank + rope_dim` numbers, the latent and a key part that
    carries the position. From the latent every head makes the rest of its key and its
    value.
    """

    kv_rank: int
    query_rank: int | None  # of the queries' own latent; None: projected from the input
    nope_dim: int  # of a head's query and key, the part without position
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        check_rules(asdict(self), LATENT_RULES)


@no_type_check  # as above
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Mixture of experts (DeepSeekMoE): each token takes `num_active` of `num_experts`.

    Only experts of the `num_active_groups` best groups can be chosen: by softmax scores
    and a group's best one, or by sigmoid scores plus a learned bias, which counts in the
    choice only, and the sum of a group's two best.
    """

    first_layer: int  # of those that have experts; the ones before have one MLP
    num_experts: int
    num_active: int
    num_shared: int  # more experts' worth of an MLP that every token takes
    intermediate_size: int  # of one expert
    scoring: Scoring
    num_groups: int = 1
    num_active_groups: int = 1
    normalize: bool = False  # the chosen ones' scores to a sum of 1
    scale: float = 1.0  # of the chosen ones' scores

    def __post_init__(self) -> None:
        check_rules(asdict(self), EXPERTS_RULES)
        if self.num_experts % self.num_groups:
            raise ValueError(
                f"num_experts={self.num_experts} must be a multiple of "
                f"num_groups={self.num_groups}; check the model's config."
            )
        of_group = self.num_experts // self.num_groups
        if self.num_active_groups < self.num_groups and self.group_votes > of_group:
            raise ValueError(
                f"scoring={self.scoring!r} compares groups by the best {self.group_votes} "
                f"experts of each group, a group has {of_group}; check the model's config."
            )
        if self.num_active_groups > self.num_groups or (
            self.num_active > of_group * self.num_active_groups
        ):
            raise ValueError(
                f"num_active={self.num_active} experts in num_active_groups="
                f"{self.num_active_groups} of num_groups={self.num_groups} groups of "
                f"{of_group} cannot be chosen; check the model's config."
            )

    @property
    def group_votes(self) -> int:
        """The best experts of a group whose scores are the group's."""
        return 1 if self.scoring == "softmax" else 2


ROPE_RULES = dict(
    theta=POSITIVE,
    scaling=one_of(*get_args(Scaling)),
    factor=POSITIVE,
    low_freq_factor=POSITIVE,
    high_freq_factor=POSITIVE,
    original_context=COUNT,
    magnitude=POSITIVE,
    whole_pairs=FLAG,
)
LATENT_RULES = dict(
    kv_rank=COUNT,
    query_rank=optional(COUNT),
    nope_dim=COUNT,
    rope_dim=COUNT,
    value_dim=COUNT,
)
EXPERTS_RULES = dict(
    first_layer=INDEX,
    num_experts=COUNT,
    num_active=COUNT,
    num_shared=COUNT,
    intermediate_size=COUNT,
    scoring=one_of(*get_args(Scoring)),
    num_groups=COUNT,
    num_active_groups=COUNT,
    normalize=FLAG,
    scale=POSITIVE,
)
