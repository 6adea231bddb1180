"""Moves whole blocks of all layers: copy-on-write, and to and from another tier."""

from pallas_kernels.move_blocks.api import (
    IMPLEMENTATIONS,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)

__all__ = ["IMPLEMENTATIONS", "copy_blocks", "gather_blocks", "scatter_blocks"]
