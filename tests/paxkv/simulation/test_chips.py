import pytest

from paxkv.simulation.chips import CHIPS, GIB


def test_figures_of_all_chips():
    """bfloat16 TFLOP/s, GiB, GB/s of memory (EVAL §4.2)."""
    found = {
        name: (
            chip.bfloat16_flops_per_s / 1e12,
            chip.memory_bytes / GIB,
            chip.memory_bytes_per_s / 1e9,
        )
        for name, chip in CHIPS.items()
    }
    assert found == {
        "a100_40": (312, 40, 1555),
        "a100_80": (312, 80, 2039),
        "h100": (989, 80, 3350),
        "h200": (989, 141, 4800),
        "b200": (2250, 180, 7700),
        "tpu_v4": (275, 32, 1200),
        "tpu_v5e": (197, 16, 810),
        "tpu_v5p": (459, 95, 2800),
        "tpu_v6e": (918, 32, 1600),
        "tpu_7x": (2307, 192, 7380),
    }
    assert all(chip.source for chip in CHIPS.values())


@pytest.mark.parametrize(
    "chip, dtype, tera",
    [
        ("h100", "int8", 1979),
        ("tpu_v5e", "int8", 394),
        ("tpu_7x", "float8_e4m3fn", 4614),
        ("a100_40", "float8_e4m3fn", 312),
        ("a100_40", "float32", 156),
        ("h100", "float16", 989),
    ],
)
def test_products_by_dtype_of_weights(chip, dtype, tera):
    assert CHIPS[chip].flops_per_s(dtype) == tera * 1e12
