"""Which device runs, and which kernels it gets. Asked once, when an engine starts."""

import importlib.util
from dataclasses import dataclass

import jax
import psutil
from absl import logging

from pallas_kernels.checks import PLATFORM_OF
from pallas_kernels.paged_attention import IMPLEMENTATIONS


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

    On a CPU that is `cpu` where its compiler, Numba, is installed. On accelerators it is
    `xla` until their kernels have been measured there: name `tpu` or `gpu` to use them.

    Raises:
      ValueError: the kernels do not offer the implementation, or not on this platform.
    """
    if implementation == "auto":
        has_numba = importlib.util.find_spec("numba") is not None
        chosen = "cpu" if platform == "cpu" and has_numba else "xla"
        logging.info("implementation 'auto' on %s is %r", platform, chosen)
        return chosen
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"{implementation=} is not offered; use auto, {' or '.join(IMPLEMENTATIONS)}."
        )
    needed = PLATFORM_OF.get(implementation, platform)
    if needed != platform:
        raise ValueError(
            f"{implementation=} runs on a {needed}, jax has a {platform}; use auto."
        )
    return implementation
