"""The device of a simulation: chips, what they reach, and the blocks that they hold."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from paxkv.checks import Check, integer_in, keep_checked, number_where, one_of, optional
from paxkv.sequence_tables import most_blocks
from paxkv.simulation.chips import CHIPS, GIB, Chip
from paxkv.simulation.model_shape import ModelShape
from paxkv.simulation.profiles import ATTENTION_KERNELS, Efficiency, profile_of

CPU = "cpu"  # has no figures, only what was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    """One replica's chips. Fields from `product` on are those of `Efficiency`, and
    replace the calibrated profile's numbers; None keeps them."""

    chip: str  # a name in CHIPS, or "cpu"
    num_chips: int = 1  # tensor-parallel
    memory_fraction: float | int = 0.95  # of a chip, as the artifact of the paper takes
    workspace_bytes: int = GIB  # of kernels and collectives, per chip
    kv_bytes: int | None = None  # for the cache, of all chips; None: what is left
    calibration: str | None = None  # a file of experiments.calibrate, for `calibrated`
    link_bytes_per_s: float | int | None = None  # between chips; None: as published
    host_link_bytes_per_s: float | int | None = None
    product: float | int | None = None
    weights_read: float | int | None = None
    decode_attention: float | int | None = None
    prefill_attention: float | int | None = None
    attention_kernel: str | None = None
    host_s_per_step: float | int | None = None
    host_s_per_seq: float | int | None = None
    disk_bytes_per_s: float | int | None = None
    collective_latency_s: float | int | None = None

    def __post_init__(self):
        keep_checked(self, _CHECKS)
        if self.chip == CPU and self.num_chips > 1:
            raise ValueError(
                f"num_chips={self.num_chips} of chip='cpu': its times were measured on "
                "one; use num_chips=1."
            )


def published_chip(hardware: HardwareConfig) -> Chip:
    """The chip's figures, with the links that the config replaces.

    Raises:
      ValueError: a CPU has none.
    """
    if hardware.chip == CPU:
        raise ValueError(
            "chip='cpu' has no published figures; give a calibration (python -m "
            "experiments.calibrate), simulate the profile 'calibrated' alone, and set "
            "cache.num_blocks."
        )
    chip = CHIPS[hardware.chip]
    links = ("link_bytes_per_s", "host_link_bytes_per_s")
    given = {name: getattr(hardware, name) for name in links}
    return replace(chip, **{name: rate for name, rate in given.items() if rate is not None})


def efficiency_of(hardware: HardwareConfig, profile: str) -> Efficiency:
    """What the chips reach. Numbers in the config replace those of `calibrated` only:
    `ideal` is the same bound for everybody.

    Raises:
      ValueError: there is no such profile, or the chip is a CPU.
    """
    chip = published_chip(hardware)
    efficiency = profile_of(profile, hardware.chip, chip.host_link_bytes_per_s)
    if profile == "ideal":
        return efficiency
    own = {field.name for field in fields(Efficiency)}
    given = {f.name: getattr(hardware, f.name) for f in fields(hardware) if f.name in own}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return efficiency
    source = f"{efficiency.source}; set in the config: {', '.join(given)}"
    return replace(efficiency, source=source, **given)


def activation_bytes(shape: ModelShape, max_num_batched_tokens: int, num_chips: int) -> int:
    """The largest that a step holds beside weights and cache, on one chip.

    Two buffers of a layer's widest product and its input, or the logits (after the rule of
    the paper's artifact of 2023; here numbers have two bytes and logits are split, too).
    """
    hidden = max_num_batched_tokens * shape.hidden_size
    widest = max(3 * hidden, max_num_batched_tokens * shape.intermediate_size) // num_chips
    return max(
        2 * (widest + hidden), 2 * max_num_batched_tokens * shape.vocab_size // num_chips
    )


def memory_for_kv(
    hardware: HardwareConfig, shape: ModelShape, max_num_batched_tokens: int
) -> int:
    """Bytes that one chip has left for the cache.

    Raises:
      ValueError: the weights and a step's activations do not fit, or the chip is a CPU.
    """
    chip = published_chip(hardware)
    usable = int(hardware.memory_fraction * chip.memory_bytes)
    weights = -(-shape.weights_bytes // hardware.num_chips)
    activations = activation_bytes(shape, max_num_batched_tokens, hardware.num_chips)
    others = activations + hardware.workspace_bytes
    left = usable - weights - others
    if left > 0:
        return left
    room = usable - hardware.workspace_bytes
    need = f" ≥ {-(-shape.weights_bytes // room)}" if room > 0 else ""
    raise ValueError(
        f"{shape.name} of {shape.weights_dtype} takes {weights / GIB:.1f} GiB per chip and "
        f"a step's activations and workspace {others / GIB:.1f} GiB; num_chips="
        f"{hardware.num_chips} x {hardware.chip} offer {usable / GIB:.1f} GiB each at "
        f"memory_fraction={hardware.memory_fraction}. Raise hardware.num_chips{need}, or "
        "set model.weights_dtype='int8'."
    )


def cache_share(shape: ModelShape, num_chips: int) -> float:
    """Of the cache on each chip: heads are split, and held by several chips where there
    are fewer heads than chips; latents are held by all."""
    return 1 / math.gcd(shape.cached_heads, num_chips)


def pool_blocks(
    hardware: HardwareConfig,
    shape: ModelShape,
    *,
    block_size: int,
    kv_dtype: str,
    max_num_batched_tokens: int,
    max_num_seqs: int | None = None,
    max_context: int | None = None,
) -> tuple[int, ...]:
    """Blocks per cache group, null blocks included, that fit beside the weights.

    Args:
      max_num_seqs, max_context: where both are given, a windowed group has no more blocks
        than so many sequences can use, and the first group has the rest. Otherwise all
        groups have as many.

    Raises:
      ValueError: the weights do not fit, or what is left holds fewer than two blocks.
    """
    share = cache_share(shape, hardware.num_chips)
    if hardware.kv_bytes is not None:
        budget = hardware.kv_bytes // hardware.num_chips
    else:
        budget = memory_for_kv(hardware, shape, max_num_batched_tokens)
    per_block = [
        bytes_per_token * block_size * share
        for bytes_per_token in shape.kv_bytes_per_token(kv_dtype)
    ]
    fit = int(budget // sum(per_block))
    if fit < 2:
        raise ValueError(
            f"{budget / GIB:.2f} GiB per chip are left for the cache, which holds {fit} "
            f"blocks of {sum(per_block):,.0f} bytes; need ≥ 2 (one is the null block). "
            "Raise hardware.num_chips, or lower cache.block_size or the cache's dtype."
        )
    useful = [fit] * len(per_block)
    if max_num_seqs is not None and max_context is not None:
        useful = [
            max_num_seqs
            * most_blocks(max_context, block_size, window, max_num_batched_tokens)
            + 1
            for window in shape.group_windows
        ]
    others = [min(fit, most) for most in useful[1:]]
    taken = sum(size * count for size, count in zip(per_block[1:], others, strict=True))
    first = int((budget - taken) // per_block[0]) if others else fit
    return (first, *others)


def _path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise TypeError("is no path; give a file, or None")
    return os.fspath(value)


def _all(names: Sequence[str], check: Check) -> dict[str, Check]:
    return dict.fromkeys(names, optional(check))


_CHECKS: Mapping[str, Check] = {
    "chip": one_of((*CHIPS, CPU)),
    "num_chips": integer_in(1, None, "use ≥ 1 chip"),
    "memory_fraction": number_where(lambda x: 0 < x <= 1, "in (0, 1]", "it is a share"),
    "workspace_bytes": integer_in(0, None, "0 is none"),
    "kv_bytes": optional(integer_in(1, None, "None: what the weights leave")),
    "calibration": optional(_path),
    "attention_kernel": optional(one_of(tuple(ATTENTION_KERNELS))),
    **_all(
        ("product", "weights_read", "decode_attention", "prefill_attention"),
        number_where(lambda x: 0 < x <= 1, "in (0, 1]", "it is a share of the rate"),
    ),
    **_all(
        ("host_s_per_step", "host_s_per_seq", "collective_latency_s"),
        number_where(lambda x: x >= 0, "≥ 0", "it is a time in seconds"),
    ),
    **_all(
        ("link_bytes_per_s", "host_link_bytes_per_s", "disk_bytes_per_s"),
        number_where(lambda x: x > 0, "above 0", "it is a rate in bytes per second"),
    ),
}
