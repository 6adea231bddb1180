"""What the measurement of a compiled program calls wrong, on programs made up for it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.aot.cases import CASES
from pallas_kernels.aot.gpu_code import KernelUse, dump_flags, kernels_in, read_ptxas_output
from pallas_kernels.aot.measure import Copy, Measurement, largest_copy, problems
from pallas_kernels.aot.programs import OPS, is_offered, op_program
from pallas_kernels.aot.targets import TARGETS

PROGRAM = op_program(
    "write_kv",
    "xla",
    CASES["llama3_8b"],
    "bfloat16",
    platform="tpu",
    device_kind=None,
)
POOL = PROGRAM.pool_bytes
GOOD = Measurement(
    compile_s=1.0,
    pool_bytes=POOL,
    argument_bytes=POOL,
    temp_bytes=0,
    alias_bytes=POOL,
    padding_factor=1.0,
    largest_copy=None,
    vmem_bytes=None,
    smem_bytes=None,
    kernels=(),
    collectives={},
)


def found(larger: Measurement = GOOD, target: str = "h100", **changes) -> list[str]:
    wrong = replace(GOOD, **changes)
    return problems(wrong, PROGRAM, TARGETS[target], lambda: larger)


def test_nothing_is_wrong_with_a_pool_in_place():
    assert found() == []


def test_a_pool_that_is_not_aliased():
    (problem,) = found(alias_bytes=POOL - 1)
    assert f"the pool has {POOL:,}" in problem


def test_temporaries_are_wrong_only_if_they_grow_with_the_pool():
    assert found(temp_bytes=POOL // 2, larger=replace(GOOD, temp_bytes=POOL // 2)) == []
    (problem,) = found(temp_bytes=POOL // 2, larger=replace(GOOD, temp_bytes=POOL))
    assert f"temporaries of {POOL // 2:,} bytes grow to {POOL:,}" in problem


def test_a_copy_that_grows_is_named():
    copy, larger = (Copy(instruction="copy of x", nbytes=n * POOL) for n in (1, 2))
    assert found(largest_copy=copy, larger=replace(GOOD, largest_copy=larger)) == [
        "a copy of x grows with the pool"
    ]


@pytest.mark.parametrize(("target", "count"), [("h100", 1), ("a100", 0)])
def test_spills(target, count):
    kernel = KernelUse(name="k", registers=255, spill_bytes=8, shared_bytes=0)
    assert len(found(target=target, kernels=(kernel,))) == count


def test_the_largest_copy_of_a_compiled_program():
    text = """
  %a = bf16[8,4096,128]{2,1,0:T(8,128)(2,1)} copy(%x)
  %b = f32[16,128]{1,0} gather(%y, %z), offset_dims={1}
  %c = bf16[8,8192,128]{2,1,0} fusion(%x), kind=kLoop, calls=%copy.3
  ROOT %d = f32[8,8,16,16,128]{4,3,2,1,0} dynamic-slice(%x, %i)
"""
    assert largest_copy(text, PROGRAM) == Copy(
        instruction="copy of bf16[8,4096,128]", nbytes=2 * 8 * 4096 * 128
    )
    of_pool = largest_copy(text, replace(PROGRAM, checks_all_arrays=False))
    assert of_pool == Copy(
        instruction="dynamic-slice of f32[8,8,16,16,128]", nbytes=4 * 8 * 8 * 16 * 16 * 128
    )


def test_what_ptxas_prints():
    text = """ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1056 bytes smem
ptxas info    : Compiling entry function 'a_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for a_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""
    assert read_ptxas_output(text) == [
        KernelUse(name="one", registers=168, spill_bytes=16, shared_bytes=1056),
        KernelUse(
            name="a_mosaic_gpu_kernel", registers=10, spill_bytes=0, shared_bytes=None
        ),
    ]


def test_the_dump_of_a_program_is_emptied(tmp_path):
    (tmp_path / "k.triton-to-llvm.txt").write_text("ttg.shared = 4096 : i32")
    (tmp_path / "m.1.ptx").write_text(".target sm_90a\n.visible .entry loop_fusion_1(")
    assert kernels_in(str(tmp_path), "") == []
    assert list(tmp_path.iterdir()) == []
    assert f"--xla_dump_to={tmp_path} " in dump_flags(str(tmp_path))


@pytest.mark.parametrize("multiple", [1, 2])
@pytest.mark.parametrize("op", OPS)
def test_pools_are_large_and_programs_abstract(op, multiple):
    case = CASES["llama3_8b"]
    program = op_program(
        op,
        "xla",
        case,
        "int8",
        platform="tpu",
        device_kind=None,
        pool_multiple=multiple,
    )
    assert program.pool_bytes >= multiple * 2**28
    assert program.pool.num_layers == 8
    out = jax.eval_shape(program.run, *program.arguments)
    pools = jax.tree.leaves(out)
    assert any(x.dtype == jnp.int8 for x in pools)


def test_a_pool_of_more_than_two_billion_numbers():
    case = CASES["llama3_8b_pool8gib"]
    program = op_program(
        "write_kv", "xla", case, "bfloat16", platform="gpu", device_kind=None
    )
    assert program.pool.kv.size > 2**31


def test_what_is_offered():
    assert is_offered("paged_attention", "reference")
    assert is_offered("gather_blocks", "tpu")
    assert not is_offered("write_kv", "nothing")
