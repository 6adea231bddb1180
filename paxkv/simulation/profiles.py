"""What a device reaches of its published rates, and what the host adds.

`ideal` reaches all of them and costs the host nothing: a bound. `calibrated` is, for an
A100-40 of 2023, fitted to the PagedAttention paper (arXiv 2309.06180, Figures 12a, 13 and
19a); for other chips its numbers are assumed, from the middle of what is usually reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paxkv.simulation.chips import GB_PER_S

PROFILES = ("ideal", "calibrated")

# Of the decode kernel's efficiency at blocks of 16 tokens, the share that it has from
# this block size on.
AttentionTable = tuple[tuple[int, float], ...]
ATTENTION_KERNELS: Mapping[str, AttentionTable] = {
    "flat": ((1, 1.0),),
    # one warp per block: fitted to the left side of Figure 18b of the paper
    "vllm_2023": ((1, 0.40), (2, 0.45), (4, 0.45), (8, 0.85), (16, 1.0)),
    # assumed: several blocks a tile, but each needs a copy of its own, whose size counts
    "tpu_pallas": (
        (1, 0.05),
        (2, 0.1),
        (4, 0.2),
        (8, 0.4),
        (16, 0.7),
        (32, 0.9),
        (64, 1.0),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of published rates, in (0, 1], and times that come on top."""

    product: float  # of flops, of products with weights
    weights_read: float  # of memory bandwidth
    decode_attention: float  # of memory bandwidth
    prefill_attention: float  # of flops
    attention_kernel: str  # a name in ATTENTION_KERNELS
    host_s_per_step: float
    host_s_per_seq: float
    # None: the chip's link as published
    swap_out_bytes_per_s: float | None
    swap_in_bytes_per_s: float | None
    swap_out_s_per_copy: float  # of one contiguous piece of a block
    swap_in_s_per_copy: float
    disk_bytes_per_s: float
    copy_launch_s: float  # of a step that copies blocks within the pool
    link: float  # of the rate between chips
    collective_latency_s: float
    source: str


IDEAL = Efficiency(
    product=1.0,
    weights_read=1.0,
    decode_attention=1.0,
    prefill_attention=1.0,
    attention_kernel="flat",
    host_s_per_step=0.0,
    host_s_per_seq=0.0,
    swap_out_bytes_per_s=None,
    swap_in_bytes_per_s=None,
    swap_out_s_per_copy=0.0,
    swap_in_s_per_copy=0.0,
    disk_bytes_per_s=7 * GB_PER_S,
    copy_launch_s=0.0,
    link=1.0,
    collective_latency_s=0.0,
    source="published rates; disk: the bus of an NVMe drive of PCIe 4.0",
)

# Fitted to capacities at 0.5 s/token of Figure 12a and to Little's law on Figure 13
# (Alpaca); swapping to Figure 19a: milliseconds over copies are a line. The rest: assumed.
A100_40_2023 = Efficiency(
    product=0.55,
    weights_read=0.85,
    decode_attention=0.60,
    prefill_attention=0.55,
    attention_kernel="vllm_2023",
    host_s_per_step=7e-3,
    host_s_per_seq=0.22e-3,
    swap_out_bytes_per_s=13.148 * GB_PER_S,
    swap_in_bytes_per_s=12.3 * GB_PER_S,
    swap_out_s_per_copy=1.93e-6,
    swap_in_s_per_copy=3.17e-6,
    disk_bytes_per_s=2 * GB_PER_S,
    copy_launch_s=50e-6,
    link=0.8,
    collective_latency_s=20e-6,
    source="sosp23-a100-40: fitted to arXiv 2309.06180, Figures 12a, 13, 19a; "
    "prefill_attention, disk, copy launch and collectives assumed",
)


def _assumed(
    attention_kernel: str, host_link_bytes_per_s: float, collective_latency_s: float
) -> Efficiency:
    """Of a modern engine on a chip that nobody fitted: the middle of usual reports."""
    return Efficiency(
        product=0.55,
        weights_read=0.80,
        decode_attention=0.70,
        prefill_attention=0.55,
        attention_kernel=attention_kernel,
        host_s_per_step=2e-3,
        host_s_per_seq=10e-6,
        swap_out_bytes_per_s=0.8 * host_link_bytes_per_s,
        swap_in_bytes_per_s=0.8 * host_link_bytes_per_s,
        swap_out_s_per_copy=1.9e-6,
        swap_in_s_per_copy=3.2e-6,
        disk_bytes_per_s=2 * GB_PER_S,
        copy_launch_s=10e-6,
        link=0.8,
        collective_latency_s=collective_latency_s,
        source="assumed",
    )


def profile_of(profile: str, chip: str, host_link_bytes_per_s: float) -> Efficiency:
    """The numbers of a profile for a chip.

    Raises:
      ValueError: there is no such profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"{profile=} is not offered; use one of {', '.join(PROFILES)}.")
    if profile == "ideal":
        return IDEAL
    if chip == "a100_40":
        return A100_40_2023
    if chip == "a100_80":
        # the paper's third machine: the same software on the same kind of chip
        return A100_40_2023
    is_tpu = chip.startswith("tpu")
    return _assumed(
        "tpu_pallas" if is_tpu else "flat", host_link_bytes_per_s, 5e-6 if is_tpu else 10e-6
    )
