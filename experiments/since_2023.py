"""Beyond the paper: what each idea since 2023 adds to its scheduler, on today's chips.

    python -m experiments.since_2023 --quick
    PAXKV_TRACES=data python -m experiments.since_2023

The files of configs/since_2023 are sections of one page: their runs are simulations, and
their tables and plots are made of them. Writes rows.jsonl to --out, from where a stopped
run goes on, and docs/since_2023.md; of some sections or with --quick, a page in --out.
Exits with 1 if a check failed or a run ended with an error. Without the real traces their
section is empty.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from absl import app, flags, logging

from configs.since_2023 import chips, ideas, systems, traces
from configs.since_2023.page import INTRODUCTION, workload_table
from experiments import entry
from experiments.figure_runs import run_missing
from paxkv.reproduction.jobs import as_mode, jobs_of
from paxkv.reproduction.running import errors, read_rows
from paxkv.reproduction.since_page import Result, page_text, result_of
from paxkv.reproduction.since_plots import draw_group
from paxkv.results import ResultsNotWritten, cut_torn_line, explained, prepare_folder

PAGE = Path("docs/since_2023.md")
SECTIONS = {"ideas": ideas, "systems": systems, "chips": chips, "traces": traces}
DRAWN = {ideas.GROUP: "since_2023_ideas.png", chips.GROUP: "since_2023_chips.png"}

QUICK = flags.DEFINE_bool("quick", False, "Short traces, one seed, few cells.")
CHOSEN = flags.DEFINE_multi_enum("sections", list(SECTIONS), list(SECTIONS), "Which.")
OUT = flags.DEFINE_string("out", None, "Folder; default: results/since_2023, or _quick.")
PROCESSES = flags.DEFINE_integer("processes", 2, "Simulations at once.", lower_bound=1)


def draw_all(results: list[Result], folder: Path) -> dict[str, list[str]]:
    """Plots into a folder beside the page; their names by group."""
    names: dict[str, list[str]] = {}
    prepare_folder(folder)
    for group, name in DRAWN.items():
        some = [result for result in results if result.section.group == group]
        if draw_group(some, folder / name):
            names[group] = [f"{folder.name}/{name}"]
    return names


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse: what can be refused is refused before anything runs
    mode = "quick" if QUICK.value else "full"
    folder = Path(OUT.value or f"results/since_2023{'_quick' if QUICK.value else ''}")
    path = folder / "rows.jsonl"
    command = shlex.join(["python", "-m", "experiments.since_2023", *sys.argv[1:]])
    try:
        sections = [
            replace(section, figure=as_mode(section.figure, mode))
            for name in SECTIONS
            if name in CHOSEN.value
            for section in SECTIONS[name].get_sections()
        ]
        jobs = [job for section in sections for job in jobs_of(section.figure)]
        prepare_folder(folder)
        cut_torn_line(path)
        rows = read_rows(path)
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    try:
        run_missing(
            jobs,
            rows,
            path,
            processes=PROCESSES.value,
            experiment="since_2023",
            command=command,
        )

        # --- report
        results = [result_of(section, rows, mode) for section in sections]
        is_whole = mode == "full" and set(CHOSEN.value) == set(SECTIONS)
        page = PAGE if is_whole else folder / PAGE.name
        try:
            plots = draw_all(results, page.parent / "figures")
        except ImportError as error:
            plots = {}
            print(f"No plots: {error}")
        introduction = INTRODUCTION.format(command=command, workloads=workload_table(mode))
        with explained(page):
            page.write_text(page_text(results, introduction, plots), "utf-8")
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    print(f"The page is {page}.")
    wrong = [one for result in results for one in result.judged if one.is_unexpected]
    lines = [f"{o.check.name}: {o.verdict.value}, {o.values} {o.why}" for o in wrong]
    lines += errors(jobs, rows)
    for line in lines:
        print(f"FAILED: {line}")
    return int(bool(lines))


if __name__ == "__main__":
    entry.run(main)
