"""Reproduces the PagedAttention paper (arXiv 2309.06180), figure by figure.

    python -m experiments.paper --figure=all --quick
    python -m experiments.paper --figure=all
    python -m experiments.paper --figure=2,13 --long

A file of configs/paper is a figure: its runs, the paper's numbers beside ours, and bands
that were set before these runs. Each band must also reject a wrong policy that is planted.
Prints one table, writes rows.jsonl to --out, from where a stopped run goes on, and a page
with plots: docs/paper.md of all figures in full, else paper.md in --out. Exits with 1 if a
check failed that was not expected to.
"""

import importlib
import re
import shlex
import sys
from pathlib import Path

from absl import app, flags, logging

from experiments import entry
from experiments.figure_runs import run_missing
from paxkv.reproduction.figure import Figure
from paxkv.reproduction.jobs import as_mode, jobs_of
from paxkv.reproduction.judging import judge
from paxkv.reproduction.page import write_page
from paxkv.reproduction.running import errors, read_rows
from paxkv.reproduction.table import Report, report_of, summary, table
from paxkv.results import ResultsNotWritten, cut_torn_line, prepare_folder

CONFIGS = Path("configs/paper")
PAGE = Path("docs/paper.md")
ALL = "all"

FIGURE = flags.DEFINE_list("figure", [ALL], "Which, or all of configs/paper.")
QUICK = flags.DEFINE_bool("quick", False, "Short traces, one seed, few cells.")
LONG = flags.DEFINE_bool("long", False, "The paper's traces of an hour.")
OUT = flags.DEFINE_string("out", None, "Folder; default: results/paper, paper_quick, ...")
PROCESSES = flags.DEFINE_integer("processes", 2, "Simulations at once.", lower_bound=1)
FRESH = flags.DEFINE_bool("fresh", False, "Runs again what --out has results of.")


def figures() -> dict[str, Figure]:
    """Of all configs that have one, in the order of their rows."""
    found = []
    for path in sorted(CONFIGS.glob("*.py")):
        module = importlib.import_module(f"configs.paper.{path.stem}")
        if hasattr(module, "get_figure"):
            found.append(module.get_figure())
    return {figure.figure: figure for figure in sorted(found, key=_place)}


def _place(figure: Figure) -> tuple[int, str]:
    return int(re.sub(r"\D", "", figure.row) or 0), figure.figure


def chosen_figures() -> list[Figure]:
    """Those of --figure."""
    offered = figures()
    if FIGURE.value == [ALL]:
        return list(offered.values())
    if not FIGURE.value:
        raise app.UsageError("--figure is empty; name a figure, or all.")
    chosen: dict[str, Figure] = {}
    for asked in FIGURE.value:
        found = [figure for figure in offered.values() if _is_meant(asked, figure)]
        if not found:
            raise app.UsageError(
                f"--figure={asked} is not offered; use all, or some of "
                f"{', '.join(offered)}."
            )
        # 18b is that figure alone, 13 is 13a and 13b
        exact = [figure for figure in found if figure.figure == asked]
        chosen |= {figure.figure: figure for figure in exact or found}
    return list(chosen.values())


def _is_meant(asked: str, figure: Figure) -> bool:
    """By its name, its beginning or a part, or by its row."""
    begins = re.match(re.escape(asked) + r"(?!\d)", figure.figure) is not None
    return begins or asked in figure.parts or asked.upper() == figure.row


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    if QUICK.value and LONG.value:
        raise app.UsageError("--quick and --long are two lengths; choose one.")
    mode = "quick" if QUICK.value else "long" if LONG.value else "full"
    folder = Path(OUT.value or f"results/paper{'' if mode == 'full' else f'_{mode}'}")
    path = folder / "rows.jsonl"
    command = shlex.join(["python", "-m", "experiments.paper", *sys.argv[1:]])
    try:
        chosen = [as_mode(figure, mode) for figure in chosen_figures()]
        by_figure = [jobs_of(figure) for figure in chosen]
        prepare_folder(folder)
        cut_torn_line(path)
        rows = {} if FRESH.value else read_rows(path)
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    try:
        jobs = [job for some in by_figure for job in some]
        run_missing(
            jobs,
            rows,
            path,
            processes=PROCESSES.value,
            experiment="paper",
            command=command,
        )
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1

    # --- report
    reports: list[Report] = []
    for figure, some in zip(chosen, by_figure, strict=True):
        judged = judge(figure, some, rows, mode)
        reports.append(report_of(figure, judged, [rows[j.key] for j in some]))
    print(table(reports))
    is_whole = mode == "full" and FIGURE.value == [ALL]
    try:
        print(write_page(PAGE if is_whole else folder / "paper.md", reports, command))
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    print(summary(reports))
    failed = errors(jobs, rows)
    for line in failed:
        print(f"FAILED: {line}")
    is_unexpected = any(one.is_unexpected for r in reports for one in r.judged)
    return int(is_unexpected or bool(failed))


if __name__ == "__main__":
    entry.run(main)
