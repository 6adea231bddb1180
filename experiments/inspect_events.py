"""Shows what a run did with its blocks, from the events that it recorded.

    python -m experiments.inspect_events --events=events.jsonl --out=results/events

Checks that the events are consistent and writes trace.json (for ui.perfetto.dev), pool.png
and pool.html (zoom, hover, ask for a request), and prints a summary. Of a run that died,
the cut last line is reported and left out.
"""

from pathlib import Path

from absl import app, flags, logging

from experiments import entry
from paxkv.analysis.event_replay import replay
from paxkv.analysis.perfetto import write_trace
from paxkv.analysis.pool_page import write_page
from paxkv.analysis.pool_picture import COLOURINGS, draw_pool
from paxkv.analysis.request_lives import event_totals, totals_table
from paxkv.event_log import read_events
from paxkv.results import prepare_folder

EVENTS = flags.DEFINE_string("events", None, "The log, as JSONL.", required=True)
OUT = flags.DEFINE_string("out", None, "Folder of the pictures.", required=True)
COLOUR = flags.DEFINE_enum("color", "state", COLOURINGS, "What a block's colour tells.")


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    folder = Path(OUT.value)

    # --- read and check
    try:
        prepare_folder(folder)
        header, stream = read_events(EVENTS.value, on_cut_line=print)
        events = [*stream]
        history = replay(events, header.num_blocks_per_group)
    except (ValueError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- report
    print(totals_table(event_totals(events)))
    for index, group in enumerate(history.groups):
        num_blocks = group.num_blocks - 1
        print(
            f"cache group {index}: {num_blocks:,} blocks x {header.block_size} tokens and "
            f"a null block; at most {group.peak_used:,} had an owner at once "
            f"({group.peak_used / num_blocks:.0%}), and {group.num_used():,} at the end"
        )

    # --- write
    title = f"Blocks of the pool: {Path(EVENTS.value).name}"
    try:
        write_trace(folder / "trace.json", events, history)
        write_page(folder / "pool.html", events, history, title=title, colour=COLOUR.value)
        print(f"{folder / 'pool.html'} and {folder / 'trace.json'} were written.")
        draw_pool(history, folder / "pool.png", colour=COLOUR.value)
        print(f"The picture is {folder / 'pool.png'}.")
    except OSError as error:
        print(f"FAILED: {error}")
        return 1
    except ImportError as error:
        print(f"No picture: {error}")
    return 0


if __name__ == "__main__":
    entry.run(main)
