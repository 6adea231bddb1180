"""Writes K and V of new tokens into the pool."""

from pallas_kernels.write_kv.api import IMPLEMENTATIONS, write_kv

__all__ = ["IMPLEMENTATIONS", "write_kv"]
