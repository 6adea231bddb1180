"""Published figures of accelerators: what the roofline of each is made of.

Memory is counted in GiB, as the devices report it. Rates are of dense products, one way
for links. `assumed` stands where no figure was found.
"""

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 2**30
GB_PER_S = 1e9
TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One device of a tensor-parallel group."""

    bfloat16_flops_per_s: float
    int8_flops_per_s: float | None = None  # None: int8 weights are multiplied as bfloat16
    float8_flops_per_s: float | None = None
    memory_bytes: int
    memory_bytes_per_s: float
    host_link_bytes_per_s: float  # one way
    link_bytes_per_s: float  # to other chips, one way
    source: str

    def flops_per_s(self, weights_dtype: str) -> float:
        """Of products with weights of this dtype."""
        rates = {
            "int8": self.int8_flops_per_s,
            "float8_e4m3fn": self.float8_flops_per_s,
            "float32": self.bfloat16_flops_per_s / 2,  # as TF32 of an A100
        }
        return rates.get(weights_dtype) or self.bfloat16_flops_per_s


_NVIDIA = "ai-dynamo/aiconfigurator, systems/*.yaml; int8 and float8: NVIDIA data sheets"
_SCALING_BOOK = "https://jax-ml.github.io/scaling-book/tpus"
_CLOUD = "https://docs.cloud.google.com/tpu/docs"

CHIPS: Mapping[str, Chip] = {
    "a100_40": Chip(
        bfloat16_flops_per_s=312 * TERA,
        int8_flops_per_s=624 * TERA,
        memory_bytes=40 * GIB,
        memory_bytes_per_s=1555 * GB_PER_S,
        host_link_bytes_per_s=32 * GB_PER_S,
        link_bytes_per_s=300 * GB_PER_S,
        source="A100 40GB SXM data sheet; the link to the host is nominal, "
        "12-13 GB/s were measured in arXiv 2309.06180, Figure 19a",
    ),
    "a100_80": Chip(
        bfloat16_flops_per_s=312 * TERA,
        int8_flops_per_s=624 * TERA,
        memory_bytes=80 * GIB,
        memory_bytes_per_s=2039 * GB_PER_S,
        host_link_bytes_per_s=32 * GB_PER_S,
        link_bytes_per_s=300 * GB_PER_S,
        source=_NVIDIA,
    ),
    "h100": Chip(
        bfloat16_flops_per_s=989 * TERA,
        int8_flops_per_s=1979 * TERA,
        float8_flops_per_s=1979 * TERA,
        memory_bytes=80 * GIB,
        memory_bytes_per_s=3350 * GB_PER_S,
        host_link_bytes_per_s=64 * GB_PER_S,
        link_bytes_per_s=450 * GB_PER_S,
        source=_NVIDIA,
    ),
    "h200": Chip(
        bfloat16_flops_per_s=989 * TERA,
        int8_flops_per_s=1979 * TERA,
        float8_flops_per_s=1979 * TERA,
        memory_bytes=141 * GIB,
        memory_bytes_per_s=4800 * GB_PER_S,
        host_link_bytes_per_s=64 * GB_PER_S,
        link_bytes_per_s=450 * GB_PER_S,
        source=_NVIDIA,
    ),
    "b200": Chip(
        bfloat16_flops_per_s=2250 * TERA,
        int8_flops_per_s=4500 * TERA,
        float8_flops_per_s=4500 * TERA,
        memory_bytes=180 * GIB,
        memory_bytes_per_s=7700 * GB_PER_S,
        host_link_bytes_per_s=128 * GB_PER_S,
        link_bytes_per_s=900 * GB_PER_S,
        source=_NVIDIA,
    ),
    "tpu_v4": Chip(
        bfloat16_flops_per_s=275 * TERA,
        memory_bytes=32 * GIB,
        memory_bytes_per_s=1200 * GB_PER_S,
        host_link_bytes_per_s=16 * GB_PER_S,
        link_bytes_per_s=45 * GB_PER_S,
        source=_SCALING_BOOK,
    ),
    "tpu_v5e": Chip(
        bfloat16_flops_per_s=197 * TERA,
        int8_flops_per_s=394 * TERA,
        memory_bytes=16 * GIB,
        memory_bytes_per_s=810 * GB_PER_S,
        host_link_bytes_per_s=15 * GB_PER_S,
        link_bytes_per_s=45 * GB_PER_S,
        source=_SCALING_BOOK,
    ),
    "tpu_v5p": Chip(
        bfloat16_flops_per_s=459 * TERA,
        int8_flops_per_s=918 * TERA,
        memory_bytes=95 * GIB,
        memory_bytes_per_s=2800 * GB_PER_S,
        host_link_bytes_per_s=15 * GB_PER_S,
        link_bytes_per_s=90 * GB_PER_S,
        source=f"{_SCALING_BOOK}; memory and int8: {_CLOUD}/v5p",
    ),
    "tpu_v6e": Chip(
        bfloat16_flops_per_s=918 * TERA,
        int8_flops_per_s=1836 * TERA,
        memory_bytes=32 * GIB,
        memory_bytes_per_s=1600 * GB_PER_S,
        host_link_bytes_per_s=32 * GB_PER_S,
        link_bytes_per_s=90 * GB_PER_S,
        source=f"{_SCALING_BOOK}; int8: {_CLOUD}/v6e",
    ),
    "tpu_7x": Chip(
        bfloat16_flops_per_s=2307 * TERA,
        float8_flops_per_s=4614 * TERA,
        memory_bytes=192 * GIB,
        memory_bytes_per_s=7380 * GB_PER_S,
        host_link_bytes_per_s=32 * GB_PER_S,
        link_bytes_per_s=90 * GB_PER_S,
        source=f"{_CLOUD}/tpu7x; both links assumed, as those of v6e",
    ),
}
