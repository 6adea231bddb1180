"""Registers, spills and shared memory of compiled GPU kernels, as ptxas tells them."""

import re
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """What one thread, or one block of threads, takes."""

    name: str
    registers: int
    spill_bytes: int  # stored and loaded
    shared_bytes: int | None  # None: chosen by the launch, which the code does not tell


def dump_flags(folder: str) -> str:
    """For XLA_FLAGS: leaves the assembly of each kernel in the folder."""
    return (
        f"--xla_dump_to={folder} --xla_dump_emitter_re=ptx|triton-to-llvm "
        "--xla_dump_max_hlo_modules=1000000"
    )


def read_ptxas_output(text: str) -> list[KernelUse]:
    """The kernels that `ptxas -v`, or Mosaic GPU, printed about."""
    kernels = []
    for found in _FUNCTION.finditer(text):
        shared = int(found["shared"] or 0)
        kernels.append(
            KernelUse(
                name=found["name"],
                registers=int(found["registers"]),
                spill_bytes=int(found["stores"]) + int(found["loads"]),
                # Mosaic GPU launches with what it needs, and has one byte else
                shared_bytes=None if "mosaic" in found["name"] else shared,
            )
        )
    return kernels


def kernels_in(folder: str, printed: str) -> list[KernelUse]:
    """Those of a program that was compiled under `dump_flags`; empties the folder.

    Of several Triton kernels in one program the largest shared memory counts.

    Args:
      printed: what the compilation wrote to its standard output.
    """
    files = sorted(Path(folder).iterdir())
    shared = max(map(_triton_shared_bytes, files), default=0)
    kernels = read_ptxas_output(printed)
    for file in files:
        if file.suffix == ".ptx":
            kernels += _assemble(file, shared)
    for file in files:
        file.unlink()
    return kernels


def _triton_shared_bytes(file: Path) -> int:
    """What a Triton kernel asks for when it is launched."""
    if "triton-to-llvm" not in file.name:
        return 0
    return max(map(int, re.findall(r"ttg\.shared = (\d+)", file.read_text())), default=0)


def _assemble(file: Path, launched_shared: int) -> list[KernelUse]:
    """The kernel of one file, unless XLA made it by fusing instructions."""
    text = file.read_text()
    entry = re.search(r"\.entry (\w+)", text)
    if entry is None or "fusion" in entry[1] or entry[1].startswith("wrapped_"):
        return []
    architecture = re.search(r"^\.target (\w+)", text, re.MULTILINE)
    assert architecture is not None, f"{file} names no architecture"
    done = subprocess.run(
        [ptxas(), "-v", "--gpu-name", architecture[1], str(file), "-o", f"{file}.cubin"],
        capture_output=True,
        text=True,
        check=True,
    )
    Path(f"{file}.cubin").unlink(missing_ok=True)
    kernels = read_ptxas_output(done.stderr + done.stdout)
    if "global_smem" in text:
        kernels = [replace(kernel, shared_bytes=launched_shared) for kernel in kernels]
    return kernels


def ptxas() -> str:
    """The assembler of NVIDIA's package.

    Raises:
      ValueError: this Python has none.
    """
    spec = find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(root).glob("*/bin/ptxas")):
            return str(path)
    raise ValueError("ptxas is missing; install nvidia-cuda-nvcc or nvidia-cuda-nvcc-cu12.")
