"""How many blocks requests with a common beginning hold, and how many they share.

    python -m experiments.count_sharing
    python -m experiments.count_sharing --requests=10 --own=61 --samples=4

Counted, not timed, and without a model: the scheduler serves the requests with known
tokens, once with the prefix cache and several samples per request, once with neither. Each
is counted again with a second group of layers that has a window.
"""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.sharing import HeldBlocks, SharedLoad, count_blocks, sharing_table
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts

REQUESTS = flags.DEFINE_integer("requests", 100, "That arrive together.")
SHARED = flags.DEFINE_integer("shared", 4992, "Prompt tokens that all begin with.")
OWN = flags.DEFINE_integer("own", 64, "Prompt tokens of each request.")
# two at least, or the first to compute the prefix ends before the others run
OUTPUTS = flags.DEFINE_integer("outputs", 16, "Tokens of each sample.", lower_bound=2)
SAMPLES = flags.DEFINE_integer("samples", 1, "Of each request.")
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens per block.")
WINDOW = flags.DEFINE_integer("window", 1024, "Of the second group, tokens.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "A file that rows are added to.")


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    try:
        if OUT.value:
            prepare_folder(Path(OUT.value).parent)
        load = SharedLoad(
            num_requests=REQUESTS.value,
            num_shared=SHARED.value,
            num_own=OWN.value,
            num_outputs=OUTPUTS.value,
            num_samples=SAMPLES.value,
            block_size=BLOCK_SIZE.value,
        )
    except (ValueError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- count
    windows = None, WINDOW.value
    counted: dict[bool, HeldBlocks] = {}
    with tqdm(total=2 * load.num_sequences, desc="count", unit="sequence") as bar:
        for shares in (False, True):
            counted[shares] = count_blocks(
                load, shares=shares, windows=windows, on_progress=bar.update
            )

    # --- report and write
    print(
        f"{load.num_requests} requests x {load.num_samples} samples; prompts of "
        f"{load.num_shared:,} + {load.num_own:,} tokens, {load.num_outputs:,} generated; "
        f"blocks of {load.block_size}"
    )
    print(sharing_table(counted[False], counted[True], WINDOW.value))
    if OUT.value:
        info = RunInfo(
            experiment="count_sharing",
            kind="simulated",
            command=shlex.join(
                ["python", "-m", "experiments.count_sharing", *sys.argv[1:]]
            ),
            seed=0,
            device="host",
            implementation="host",
            matmul_precision="default",
            xla_flags="",
        )
        facts = run_facts(info) | {"load": asdict(load), "window": WINDOW.value}
        try:
            for shares, held in counted.items():
                append_row(Path(OUT.value), facts | {"shares": shares} | asdict(held))
        except ResultsNotWritten as error:
            print(f"FAILED: {error}")
            return 1
        print(f"Rows were added to {OUT.value}.")
    return 0


if __name__ == "__main__":
    entry.run(main)
