"""The table of what compiled, and the names of what must not have."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from paxkv.aot.jobs import Job

Row = Mapping[str, Any]

# Of the cases that CI compiles: (target, implementation).
EXPECTED_REFUSALS = {("b200", "gpu")}  # wgmma is Hopper's

COLUMNS = (
    "target",
    "op",
    "implementation",
    "case",
    "dtype",
    "status",
    "compile s",
    "VMEM KiB",
    "SMEM KiB",
    "shared KiB",
    "registers",
    "spills B",
    "temp MB",
    "alias MB",
    "pool MB",
    "padding",
)


def table(rows: Iterable[Row]) -> str:
    """One line per program, columns aligned."""
    lines = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 6 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    names = ("target", "op", "implementation", "case", "dtype", "status")
    head = tuple(row[name] for name in names)
    if "temp_bytes" not in row:
        return head + ("-",) * (len(COLUMNS) - len(head))
    kernels = row["kernels"]
    shared = [k["shared_bytes"] for k in kernels if k["shared_bytes"] is not None]
    return head + (
        f"{row['compile_s']:.1f}",
        _kib(row["vmem_bytes"]),
        _kib(row["smem_bytes"]),
        _kib(max(shared)) if shared else "-",
        str(max(k["registers"] for k in kernels)) if kernels else "-",
        str(sum(k["spill_bytes"] for k in kernels)) if kernels else "-",
        f"{row['temp_bytes'] / 1e6:.2f}",
        f"{row['alias_bytes'] / 1e6:.1f}",
        f"{row['pool_bytes'] / 1e6:.1f}",
        f"{row['padding_factor']:.2f}",
    )


def _kib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1024:.1f}"


def summary(rows: Iterable[Row]) -> str:
    """Counts by outcome, what was refused or is missing, and every failure by name."""
    rows = list(rows)
    lines = []
    missing = Counter(
        (row["target"], row["op"], row["implementation"])
        for row in rows
        if row["status"] == "not offered"
    )
    for (target, op, implementation), count in missing.items():
        lines.append(f"not offered: {target} {op} {implementation} ({count} cases)")
    for row in rows:
        if row["status"] == "refused":
            lines.append(f"refused: {Job.of_row(row)}: {row['message']}")
    for row in failures(rows):
        lines += [f"FAILED: {Job.of_row(row)}: {problem}" for problem in row["problems"]]
    counts = Counter(row["status"] for row in rows)
    lines.append(
        f"{counts['ok']} compiled, {counts['failed']} failed, {counts['refused']} refused, "
        f"{counts['not offered']} not offered"
    )
    return "\n".join(lines)


def failures(rows: Iterable[Row]) -> list[Row]:
    """The rows that make a run fail."""
    return [row for row in rows if row["status"] == "failed"]


def unexpected_gaps(rows: Iterable[Row]) -> list[str]:
    """Programs that a kernel refuses or nobody offers, where all should compile."""
    return [
        f"{Job.of_row(row)}: {row['status']}"
        for row in rows
        if row["status"] in ("refused", "not offered")
        and (row["target"], row["implementation"]) not in EXPECTED_REFUSALS
    ]
