"""Every fault that users of other systems reported has a test of the right behaviour.

They are in `test_known_faults_{reuse,isolation,counts,pressure}.py`: a test is named after
the symptom, and its docstring cites the report. Others are covered elsewhere:

- NVIDIA/TensorRT-LLM#2699 (scales belong to a block): test_transfers.py::
  test_every_kind_of_move and the int8 axis of test_differential.py.
- flash-attention#1745, #2374 (NaN in unused positions), flash-attention#2711, vllm#48257,
  onnxruntime#32391 (a table read past its end): the kernels' tests run on pools whose
  unowned blocks are NaN, and on tables of exact size whose dead entries name no block:
  tests/pallas_kernels/paged_attention (ELSEWHERE below).
- vllm#2594, #10938, flashinfer#1796, flash-attention#1579, onnxruntime-genai#2568 (block
  sizes refused late): test_config.py::test_a_bad_value_is_named_with_the_remedy, and
  test_gpu.py::test_limits_name_both_values_and_the_remedy.
- jax#38497, #31395 (interpreted writes were lost): the cases of three and more blocks of
  tests/pallas_kernels/write_kv.

Two do not apply. LMCache#1285 (fragments of variable size): all blocks have one size.
vllm#46283 (aborted remote loads): there are none; what comes from disk is read while
planning.
"""

import importlib.util
import inspect
from pathlib import Path

import pytest

FILES = ("reuse", "isolation", "counts", "pressure")
STARRED = (
    "tenstorrent/vllm#415",
    "tanishqkumar/ssd#23",
    "vllm#4764",
    "mini-sglang#142",
    "TensorRT-LLM#8813",
    "DingoCache#76",
    "vllm#12621",
    "vllm#44701",
    "vllm#30931",
    "LMCache#4086",
    "xllm#828",
    "imp#1115",
    "atlas#373",
    "dynamo#13398",
    "vllm#14326",
    "vllm#39734",
    "vllm#23347",
    "inference-sim#297",
    "vllm#9972",
    "Megatron-LM#5822",
    "vllm#25780",
    "vllm#43736",
)
# of the kernels: flash-attention#1745 and #2711
ELSEWHERE = {
    "pallas_kernels/paged_attention/test_against_reference.py": (
        "test_entries_before_the_window_are_not_read",
        "test_xla_is_the_reference",
    ),
    "pallas_kernels/paged_attention/test_cpu.py": (
        "test_entries_before_the_window_are_not_read",
        "test_named_cases",
        "test_numbers_that_break_the_contract_give_nan_and_no_crash",
    ),
    "pallas_kernels/paged_attention/test_gpu.py": ("test_the_tables_are_looked_up",),
    "pallas_kernels/paged_attention/test_tpu.py": ("test_is_the_reference",),
    "paxkv/test_transfers.py": ("test_every_kind_of_move",),
    "paxkv/test_config.py": ("test_a_bad_value_is_named_with_the_remedy",),
}
TESTS = Path(__file__).parents[1]


def cited():
    """All docstrings of the tests of faults, as one text."""
    texts = []
    for name in FILES:
        path = Path(__file__).with_name(f"test_known_faults_{name}.py")
        spec = importlib.util.spec_from_file_location(f"faults_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        texts += [
            inspect.getdoc(value) or ""
            for key, value in vars(module).items()
            if key.startswith("test_")
        ]
    return "\n".join(texts)


def test_every_starred_fault_is_cited_by_a_test():
    text = cited()
    assert [fault for fault in STARRED if fault not in text] == []


@pytest.mark.parametrize("path", ELSEWHERE)
def test_what_is_covered_elsewhere_is_there(path):
    text = (TESTS / path).read_text()
    assert [name for name in ELSEWHERE[path] if f"def {name}(" not in text] == []
