"""Compiles kernels and whole steps for chips that this machine does not have.

    bash scripts/compile.sh --target=v5e,h100 --out=results/compile.jsonl
    bash scripts/compile.sh --subset
    bash scripts/compile.sh --target=v6e --ops=paged_attention --cases='llama|mla'

Each program writes K and V and attends in a scan over eight layers, its pool of at least
256 MB donated; or it is one move of blocks, or a decode step of Llama-3-8B. Prints a
table and the failures by name: a compiler's error, a register spill on H100 or B200, an
array or temporaries that grow with the pool, a pool that is not updated in place. Exits
with 1 if anything failed.

`--out` gets a JSON object per program. A second run with the same file compiles only what
it lacks, unless sources or compilers changed. Needs the environment of scripts/compile.sh,
but for --target=cpu.
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from absl import app, flags
from tqdm import tqdm

from experiments import entry
from pallas_kernels.aot.targets import TARGETS, missing
from pallas_kernels.checks import PLATFORM_OF
from paxkv.aot.jobs import ALL_OPS, Job, make_jobs, source_digest
from paxkv.aot.report import failures, summary, table, unexpected_gaps
from paxkv.aot.runner import run_jobs
from paxkv.results import (
    CHECKOUT,
    ResultsNotWritten,
    RunInfo,
    append_row,
    prepare_folder,
    rows_by,
    run_facts,
)

CHIPS = [name for name, target in TARGETS.items() if target.platform != "cpu"]
TARGET = flags.DEFINE_list("target", CHIPS, f"Of {', '.join(TARGETS)}.")
OPS = flags.DEFINE_list("ops", list(ALL_OPS), f"Of {', '.join(ALL_OPS)}.")
CASE_PATTERN = flags.DEFINE_string("cases", "", "Only cases whose name has this regex.")
IMPLEMENTATIONS = flags.DEFINE_list(
    "implementations", [], "Instead of those of each target; reference, say."
)
SUBSET = flags.DEFINE_bool("subset", False, "Only what CI compiles, some minutes.")
OUT = flags.DEFINE_string("out", None, "A file of rows, that a second run completes.")
PROCESSES = flags.DEFINE_integer("processes", 2, "Targets at a time.", lower_bound=1)


def check_flags() -> None:
    """Raises a UsageError for unknown names and for compilers that are missing."""
    known = (
        ("target", TARGET.value, TARGETS),
        ("ops", OPS.value, ALL_OPS),
        ("implementations", IMPLEMENTATIONS.value, [*PLATFORM_OF, "xla", "reference"]),
    )
    for flag, values, choices in known:
        for value in values:
            if value not in choices:
                raise app.UsageError(
                    f"--{flag}={value} is unknown; choose from {', '.join(choices)}."
                )
    for name in TARGET.value:
        if (reason := missing(TARGETS[name])) is not None:
            raise app.UsageError(reason)
    try:
        re.compile(CASE_PATTERN.value)
    except re.error as error:
        raise app.UsageError(
            f"--cases={CASE_PATTERN.value} is no regular expression: {error}."
        ) from error


def read_done(path: Path | None, jobs: Collection[Job], digest: str) -> dict[str, Any]:
    """Rows of an earlier run that are asked for again and still hold, by their job."""

    def key(row: Any) -> tuple[str, str]:
        return str(Job.of_row(row)), row["digest"]

    try:
        rows = rows_by(key, path)
    except ValueError as error:
        raise app.UsageError(f"--out={error}") from error
    wanted = set(map(str, jobs))
    return {job: row for (job, d), row in rows.items() if d == digest and job in wanted}


def main() -> int:
    # --- what to compile
    check_flags()
    jobs = make_jobs(
        TARGET.value,
        ops=OPS.value,
        cases=CASE_PATTERN.value,
        implementations=IMPLEMENTATIONS.value,
        subset=SUBSET.value,
    )
    if not jobs:
        raise app.UsageError(
            f"no case matches --cases={CASE_PATTERN.value} among those of the chosen ops."
        )
    out = Path(OUT.value) if OUT.value else None
    digest = source_digest(CHECKOUT)
    rows = read_done(out, jobs, digest)
    facts = run_facts(
        RunInfo(
            experiment="compile_kernels",
            kind="compiled",
            command=" ".join(sys.argv),
            seed=0,
            device="none",
            implementation="see the row",
            matmul_precision="default",
            xla_flags="",
        )
    )

    # --- compile
    todo = [job for job in jobs if str(job) not in rows]
    with tqdm(total=len(jobs), initial=len(rows), unit="program") as bar:

        def keep(row: dict[str, Any]) -> None:
            row = {**facts, **row, "digest": digest}
            rows[str(Job.of_row(row))] = row
            if out is not None:
                append_row(out, row)
            if row["status"] == "failed":
                bar.write(f"FAILED: {Job.of_row(row)}", file=sys.stderr)
            bar.set_postfix_str(f"{row['target']} {row['op']} {row['case']}")
            bar.update()

        try:
            if out is not None:
                prepare_folder(out.parent)
            run_jobs(todo, keep, processes=PROCESSES.value)
        except ResultsNotWritten as error:
            raise app.UsageError(str(error)) from error

    # --- report
    ordered = [rows[str(job)] for job in jobs]
    print(table(ordered))
    print(summary(ordered))
    gaps = unexpected_gaps(ordered) if SUBSET.value else []
    for gap in gaps:
        print(f"FAILED: {gap}, and --subset has only what must compile")
    return int(bool(failures(ordered) or gaps))


if __name__ == "__main__":
    entry.run(main)
