"""Compiles a program for a chip and says what it needs, and what is wrong with it."""

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pallas_kernels.aot.gpu_code import KernelUse
from pallas_kernels.aot.programs import Program
from pallas_kernels.aot.targets import Target

_ITEM_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
# Instructions that make a new array of old content: none of them may take the pool.
_MAKER = re.compile(
    r"= (?P<dtype>\w+)\[(?P<shape>[\d,]*)\]\S* "
    r"(?P<op>copy|gather|dynamic-slice|transpose|convert)\("
)
_SCOPED = re.compile(
    r"used_scoped_memory_configs\":\[\{\"memory_space\":\"1\",\"offset\":\"\d+\","
    r"\"size\":\"(\d+)\""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An instruction of a compiled program that makes a large array."""

    instruction: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Of one program on one chip. Bytes are those of one device."""

    compile_s: float
    pool_bytes: int
    argument_bytes: int
    temp_bytes: int
    alias_bytes: int
    padding_factor: float
    largest_copy: Copy | None
    vmem_bytes: int | None  # of the largest kernel of a TPU program
    smem_bytes: int | None
    kernels: tuple[KernelUse, ...]  # of a GPU program
    collectives: dict[str, int]


def measure(
    program: Program,
    target: Target,
    devices: list[Any],
    kernels_of: Callable[[], list[KernelUse]],
) -> Measurement:
    """Compiles the program for the first of the devices, unless it names its own.

    Args:
      kernels_of: called after the compilation, for what it left about GPU kernels.
    """
    sharding = SingleDeviceSharding(devices[0])

    def place(x):
        if x.sharding is not None:
            return x
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    arguments = jax.tree.map(place, program.arguments)
    run: Any = program.run
    if not program.is_jitted:
        run = jax.jit(run, donate_argnums=(0,) if program.donates else ())
    started_s = time.perf_counter()
    with target.lowering(devices):
        traced = run.trace(*arguments, **program.keywords)
        compiled = traced.lower().compile()
    compile_s = time.perf_counter() - started_s
    text, memory = compiled.as_text(), compiled.memory_analysis()
    is_tpu = target.platform == "tpu"
    return Measurement(
        compile_s=round(compile_s, 2),
        pool_bytes=program.pool_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        padding_factor=round(program.padding_factor, 3),
        largest_copy=largest_copy(text, program),
        vmem_bytes=vmem_bytes(text) if is_tpu else None,
        smem_bytes=smem_bytes(traced.jaxpr.jaxpr) if is_tpu else None,
        kernels=tuple(kernels_of()),
        collectives=collectives(text),
    )


def largest_copy(text: str, program: Program) -> Copy | None:
    """The instruction that makes the largest new array of old content, if any."""
    of_pool = {tail for x in jax.tree.leaves(program.pool) for tail in (x.shape[2:],)}
    largest = None
    for found in _MAKER.finditer(text):
        shape = tuple(int(size) for size in found["shape"].split(",") if size)
        if not program.checks_all_arrays and not any(
            shape[-len(tail) :] == tail for tail in of_pool
        ):
            continue
        nbytes = math.prod(shape) * _ITEM_BYTES.get(found["dtype"], 1)
        if largest is None or nbytes > largest.nbytes:
            instruction = f"{found['op']} of {found['dtype']}[{found['shape']}]"
            largest = Copy(instruction=instruction, nbytes=nbytes)
    return largest


def vmem_bytes(text: str) -> int:
    """What the largest Pallas kernel of a TPU program keeps in VMEM."""
    lines = [line for line in text.splitlines() if "tpu_custom_call" in line]
    return max((int(n) for line in lines for n in _SCOPED.findall(line)), default=0)


def smem_bytes(jaxpr: Any) -> int:
    """What the largest Pallas kernel of a program keeps in SMEM."""
    largest = 0
    for kernel in _kernels(jaxpr):
        inside = [v.aval for v in kernel.invars if "smem" in str(v.aval).lower()]
        largest = max(largest, sum(aval.size * aval.dtype.itemsize for aval in inside))
    return largest


def _kernels(jaxpr: Any) -> Iterator[Any]:
    """The inner programs of all `pallas_call`s."""
    for equation in jaxpr.eqns:
        for name, value in equation.params.items():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if not hasattr(inner, "eqns"):
                    continue
                if name == "jaxpr" and "grid_mapping" in equation.params:
                    yield inner
                else:
                    yield from _kernels(inner)


def collectives(text: str) -> dict[str, int]:
    """How many of each kind a program on several devices has."""
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    names += ("collective-permute",)
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in names}
    return {name: count for name, count in counts.items() if count}


def problems(
    found: Measurement,
    program: Program,
    target: Target,
    at_twice_the_pool: Callable[[], Measurement],
) -> list[str]:
    """What a program must not do, as sentences; none if all is well.

    Args:
      at_twice_the_pool: the same with twice as many blocks, in pool and tables. An array
        that does not grow with them is work space, however large.
    """
    result = []
    if program.donates and found.alias_bytes < found.pool_bytes:
        result.append(
            f"{found.alias_bytes:,} bytes are updated in place, the pool has "
            f"{found.pool_bytes:,}"
        )
    for kernel in found.kernels:
        if kernel.spill_bytes and target.name in ("h100", "b200"):
            result.append(f"{kernel.name} spills {kernel.spill_bytes:,} bytes of registers")
    copied = 0 if found.largest_copy is None else found.largest_copy.nbytes
    if max(found.temp_bytes, copied) < program.temp_limit:
        return result
    larger = at_twice_the_pool()
    copied_larger = 0 if larger.largest_copy is None else larger.largest_copy.nbytes
    if _grows(found.temp_bytes, larger.temp_bytes, program.temp_limit):
        result.append(
            f"temporaries of {found.temp_bytes:,} bytes grow to {larger.temp_bytes:,} with "
            f"twice the pool of {found.pool_bytes:,}"
        )
    if _grows(copied, copied_larger, program.temp_limit):
        assert found.largest_copy is not None
        result.append(f"a {found.largest_copy.instruction} grows with the pool")
    return result


def _grows(before: int, after: int, limit: float) -> bool:
    """Whether a share of the pool that counts is part of it."""
    return after - before >= limit
