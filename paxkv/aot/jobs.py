"""Which programs are compiled: every op, case, dtype and implementation of each target."""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from pallas_kernels.aot.cases import CASES
from pallas_kernels.aot.programs import MOVE_OPS, OPS
from pallas_kernels.aot.targets import TARGETS

STEP_OPS = ("decode_step", "sharded_decode_step")
ALL_OPS = (*OPS, *STEP_OPS)
SUBSET_WHOLE = ("v5e", "h100")  # of the others CI compiles one case, and no XLA
STEP_CASE = "llama3_8b"
SMALL_STEP_CASE = "llama3_8b_16_layers"  # of chips with 16 GB
MAX_MESSAGE = 600  # characters of a compiler's complaint
_SOURCES = ("pallas_kernels", "paxkv")
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-pjrt", "jax-cuda12-pjrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program for one chip."""

    target: str
    op: str
    implementation: str
    case: str
    dtype: str  # of the pool

    def __str__(self) -> str:
        return " ".join((self.target, self.op, self.implementation, self.case, self.dtype))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Job":
        """The job of a result row."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})


def make_jobs(
    targets: Sequence[str],
    *,
    ops: Collection[str],
    cases: str,
    implementations: Collection[str],
    subset: bool,
) -> list[Job]:
    """All that match.

    Args:
      cases: a regular expression that is searched for in names of cases.
      implementations: none for those of each target.
      subset: only what CI compiles.
    """
    jobs = []
    for target in targets:
        own = TARGETS[target].implementations
        if subset and target not in SUBSET_WHOLE:
            own = tuple(name for name in own if name != "xla")
        for implementation in implementations or own:
            for op in ops:
                for case, dtype in _cases_of(target, op, implementation, subset):
                    if re.search(cases, case):
                        jobs.append(
                            Job(
                                target=target,
                                op=op,
                                implementation=implementation,
                                case=case,
                                dtype=dtype,
                            )
                        )
    return jobs


def _cases_of(
    target: str, op: str, implementation: str, subset: bool
) -> list[tuple[str, str]]:
    if op == "decode_step":
        if TARGETS[target].platform == "cpu":
            return []
        return [(SMALL_STEP_CASE if target == "v5e" else STEP_CASE, "bfloat16")]
    if op == "sharded_decode_step":
        return [(STEP_CASE, "bfloat16")] if TARGETS[target].sharded_topology else []
    chosen = [
        (case, case.subset_dtypes if subset else case.dtypes) for case in CASES.values()
    ]
    pairs = [(case.name, dtype) for case, dtypes in chosen for dtype in dtypes]
    # for CI: XLA itself and the moves depend little on the case
    is_simple = implementation == "xla" or op in MOVE_OPS or target not in SUBSET_WHOLE
    return pairs[:1] if subset and is_simple else pairs


def source_digest(root: Path) -> str:
    """Of all sources and compilers that a program comes from: a row of others is stale."""
    digest = hashlib.sha256()
    for name in _PACKAGES:
        try:
            digest.update(f"{name}=={metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"no {name}\n".encode())
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]
