"""docs/kernels.md shows a program that runs and tables that are still true."""

import re
from pathlib import Path

import numpy as np

from pallas_kernels.layout import kv_layout
from pallas_kernels.roofline import table

DOC = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text()


def test_the_program_runs_without_paxkv():
    (program,) = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    assert "paxkv" not in program
    lines = [line for line in program.splitlines() if line]
    assert len(lines) <= 17
    namespace: dict = {}
    exec(program, namespace)
    out = namespace["out"]
    assert out.shape == (25, 8, 64) and np.isfinite(out).all()
    # the first token of each sequence sees only itself
    first_value = namespace["kv"][0, 1]
    np.testing.assert_allclose(out[0, 0], first_value, atol=1e-6)


def test_the_roofline_table_is_the_command_s():
    assert table() in DOC


def test_the_layout_table_is_kv_layout_s():
    rows = re.findall(
        r"K (\d+),? (?:of|D) (\d+) \| .*? \| .*? \| ([\d.]+) \| ([\d.]+) \|", DOC
    )
    assert len(rows) == 7
    for heads, dim, bfloat16, int8 in rows:
        for dtype, shown in (("bfloat16", bfloat16), ("int8", int8)):
            layout = kv_layout(int(heads), int(dim), dtype, "tpu")
            assert f"{layout.padding_factor(16):.2f}" == shown, (heads, dim, dtype)
