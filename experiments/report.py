"""Reports the rows of earlier runs: tables, figures, one web page, and what it comes to.

    python -m experiments.report results/sweep_block_size
    python -m experiments.report results/a results/b/rows.jsonl --out=results/report
    python -m experiments.report --compare results/a results/b

What varied between the rows is found: sweeps say it, and else the configs are compared.
Rows of one setting and several seeds become a mean with its 95 % interval. Simulated and
measured rows, other devices and other cost profiles never share a table or a figure.

--compare takes two runs (PATH or PATH:NAME each) and says what became slower or faster,
and which counters went with it. Exits with 1 if a line of a file is no row, or if a file
could not be written.
"""

from pathlib import Path

from absl import app, flags, logging

from experiments import entry
from paxkv.analysis.reports.comparison import compare_runs
from paxkv.analysis.reports.loading import load_rows
from paxkv.analysis.reports.runs import load_runs
from paxkv.analysis.reports.sections import report_sections
from paxkv.analysis.reports.text import report_text
from paxkv.analysis.reports.writing import write_report
from paxkv.results import ResultsNotWritten, prepare_folder

OUT = flags.DEFINE_string(
    "out", None, "A folder for the page and the figures. Default: beside the first rows."
)
COMPARE = flags.DEFINE_bool("compare", False, "Compares two runs.")
FILES_NAMED = 8  # files that the page names one by one


def main(arguments: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)

    # --- load: what can be refused is refused before anything is written
    try:
        if COMPARE.value:
            print(
                report_text(
                    [compare_runs(one, other) for one, other in load_runs(arguments)]
                )
            )
            return 0
        loaded = load_rows(arguments)
        if not (loaded.rows or loaded.failed or loaded.malformed):
            raise ValueError(f"{', '.join(map(str, loaded.paths))} hold no rows.")
        folder = Path(OUT.value) if OUT.value else loaded.paths[0].parent / "report"
        prepare_folder(folder)
    except (ValueError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- report: the tables first, so that a full disk loses nothing
    sections = report_sections(loaded)
    print(report_text(sections), end="\n\n")

    # --- draw and write
    failed = bool(loaded.malformed)
    named = ", ".join(map(str, loaded.paths[:FILES_NAMED]))
    more = f" and {len(loaded.paths) - FILES_NAMED} more" * (
        len(loaded.paths) > FILES_NAMED
    )
    facts = [f"{len(loaded.rows)} rows from {named}{more}."]
    title = f"Report of {loaded.paths[0].parent.name}"
    try:
        print(write_report(folder, title, sections, facts))
    except ResultsNotWritten as error:
        failed = True
        print(f"FAILED: {error}")
    if loaded.malformed:
        print(f"FAILED: {len(loaded.malformed)} lines are no rows and were left out.")
    return int(failed)


if __name__ == "__main__":
    entry.run(main, paths="RESULTS")
