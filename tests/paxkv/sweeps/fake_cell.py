"""A trial that takes no time: a cell of the tests, which does what its config says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from paxkv.results import SCHEMA_VERSION
from paxkv.sweeps.grid import flat, nested

CONFIG = {
    "name": "fake",
    "output_folder": "",
    "profiles": (0, 1),
    "cache": {"block_size": 16, "watermark": 0.5},
    "workload": {"seed": 0},
    "fake": {"does": "ends", "sleep_s": 0.0, "num_rows": 2},
}


def config_of(arguments: list[str]) -> dict:
    leaves = flat(CONFIG)
    for argument in arguments:
        key, _, text = argument.removeprefix("--config.").partition("=")
        if key in leaves:
            leaves[key] = type(leaves[key])(text)
    return nested(leaves)


def main() -> None:
    config = config_of(sys.argv[1:])
    folder, does = Path(config["output_folder"]), config["fake"]["does"]
    with open(folder.parents[1] / "runs.log", "a") as log:
        log.write(f"{folder.name} {os.getpid()}\n")
    if does == "fails":
        print("FAILED: as it was told.")
        print(f"stdin has {sys.stdin.read()!r}", file=sys.stderr)
        sys.exit(1)
    if does == "babbles":
        sys.exit("x" * 3000 + "\n 50%\r100%\nthe end")
    if does == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "hangs":
        child = subprocess.Popen(["sleep", "60"])
        (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(60)
    time.sleep(config["fake"]["sleep_s"])
    if does == "edited":
        config["cache"]["block_size"] = 99
    for index in range(config["fake"]["num_rows"]):
        row = {
            "schema": SCHEMA_VERSION,
            "kind": "simulated",
            "seed": config["workload"]["seed"],
            "profile": index,
            "config": config,
            "metrics": {
                "product": config["cache"]["block_size"] * index,
                "num_rejected": 3 if does == "rejects" else 0,
            },
        }
        with open(folder / "rows.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    if does in ("rejects", "fails late"):
        sys.exit(1)


if __name__ == "__main__":
    main()
