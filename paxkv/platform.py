"""Which device runs, and which kernels it gets. Asked once, when an engine starts."""

from dataclasses import dataclass

import jax
import psutil
from absl import logging

from pallas_kernels.paged_attention import IMPLEMENTATIONS

# `auto` per platform of jax; an implementation that is not offered there raises.
IMPLEMENTATION_OF_PLATFORM = {"cpu": "xla", "gpu": "xla", "tpu": "xla"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device an engine runs on."""

    platform: str  # cpu, gpu or tpu
    name: str  # as jax names the kind, "cpu" or "NVIDIA H100 80GB HBM3", say
    free_bytes: int  # memory that a pool may take now


def current_device() -> Device:
    """Describes jax's default device."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats:
        free_bytes = stats["bytes_limit"] - stats["bytes_in_use"]
    else:
        free_bytes = psutil.virtual_memory().available
    return Device(platform=device.platform, name=device.device_kind, free_bytes=free_bytes)


def resolve_implementation(implementation: str, platform: str) -> str:
    """Replaces `auto` by the implementation of this platform, and logs the choice.

    Raises:
      ValueError: the kernels do not offer the implementation.
    """
    if implementation in IMPLEMENTATIONS:
        return implementation
    if implementation != "auto":
        raise ValueError(
            f"{implementation=} is not offered; use auto, {' or '.join(IMPLEMENTATIONS)}."
        )
    chosen = IMPLEMENTATION_OF_PLATFORM[platform]
    logging.info("implementation 'auto' on %s is %r", platform, chosen)
    return chosen
