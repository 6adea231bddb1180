"""Serves one workload from one pool size under several allocators, and compares them.

    python -m experiments.serve --config=configs/serve.py --config.cache.block_size=32
    python -m experiments.serve --config.cache.prefix_caching=True --events=events.jsonl

Prints a table, writes rows (JSONL) and a figure (PNG), and closes with what paging saved,
kept and was worth. Exits with 1 if the systems disagree in a single token, or if one
rejects a request.
"""

import itertools
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.closing import closing_words
from paxkv.analysis.plots import draw_serving
from paxkv.analysis.serving import serve_table, serving_metrics
from paxkv.building import build_engine, context_limit
from paxkv.event_log import EventLog
from paxkv.models.loading import load_decoder
from paxkv.replay import (
    Kept,
    Replay,
    Replica,
    Stopwatch,
    differing_requests,
    rejections,
    serve_in_turns,
)
from paxkv.results import ResultsNotWritten, RunInfo, prepare_folder, run_facts, save_rows
from paxkv.systems import PAGED, system_config
from paxkv.workloads.recall_workload import recall_workload, score_recall
from paxkv.workloads.workload_config import WorkloadConfig

DEFAULT_CONFIG = "configs/serve.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)


EVENTS = flags.DEFINE_string(
    "events", None, "A file for the events of paged, which slow it; see inspect_events."
)


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse and load: what can be refused is refused before anything runs
    config = CONFIG.value
    folder = Path(config.output_folder)
    if not config.allocators:
        raise app.UsageError("config.allocators is empty; name at least one.")
    if not config.output_folder:
        raise app.UsageError("config.output_folder is empty; name a folder.")
    if EVENTS.value and PAGED not in config.allocators:
        raise app.UsageError(
            f"--events are those of paged, config.allocators={config.allocators} lacks it."
        )
    try:
        prepare_folder(folder)
        if EVENTS.value:
            prepare_folder(Path(EVENTS.value).parent)
        trees = {
            "engine": config.engine,
            "cache": config.cache,
            "scheduler": config.scheduler,
            "pool_positions": config.pool_positions,
        }
        configs = {name: system_config(name, **trees) for name in config.allocators}
        workload_config = WorkloadConfig(**config.workload)
        decoder = load_decoder(config.engine.model, config.weights_dtype)
        model_context = decoder.config.max_context
        max_context = context_limit(next(iter(configs.values())), model_context)
        workload = recall_workload(workload_config, max_context)
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error

    # --- build: an engine for each system, around one set of weights
    replays, kept, executors, compile_s = {}, {}, {}, {}
    num_blocks = next(iter(configs.values())).cache.num_blocks
    for name, one in configs.items():
        clock = Stopwatch()
        # all pools are held at once: the first takes its share, the others as much
        share = one.cache.memory_fraction / len(configs)
        cache = replace(one.cache, num_blocks=num_blocks, memory_fraction=share)
        try:
            engine, executors[name] = build_engine(
                replace(one, cache=cache), decoder, clock=clock
            )
        except ValueError as error:
            raise app.UsageError(str(error)) from error
        num_blocks = executors[name].cache_plan.num_blocks
        compile_s[name] = executors[name].warm_up(engine.scheduler.tables)
        kept[name] = Kept()
        replica = Replica(engine=engine, clock=clock)
        replays[name] = Replay([replica], workload.sessions, kept[name])
    executor = next(iter(executors.values()))
    plan = executor.cache_plan  # the same for all
    pool = {
        "num_blocks": plan.num_blocks,
        "block_size": plan.block_size,
        "positions": (plan.num_blocks - 1) * plan.block_size,
        "bytes_per_token": round(plan.bytes_per_token),
        "padding_factor": plan.layout.padding_factor(plan.block_size),
    }
    info = RunInfo(
        experiment="serve",
        kind="measured",
        command=shlex.join(["python", "-m", "experiments.serve", *sys.argv[1:]]),
        seed=workload_config.seed,
        device=executor.device_name,
        implementation=executor.options.attention.implementation,
        matmul_precision=config.engine.matmul_precision,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    print(
        f"{info.device}: {info.implementation} attention, {config.weights_dtype} weights, "
        f"{config.cache.dtype} cache, matmul precision {info.matmul_precision}\n"
        f"pool: {pool['num_blocks'] - 1} blocks x {pool['block_size']} = "
        f"{pool['positions']:,} positions of {pool['bytes_per_token']:,} bytes "
        f"(padding {pool['padding_factor']:.2f} times), "
        f"{pool['positions'] * pool['bytes_per_token'] / 2**20:.1f} MiB, and a null block\n"
        f"workload: {len(workload.sessions)} requests ({workload_config.arrival}), "
        f"{sum(len(one.prompt_ids) for one in workload.turns):,} prompt tokens, "
        f"{sum(one.max_tokens for one in workload.turns):,} output tokens; "
        f"{workload.num_raised} raised to one pair, one query and its answer"
    )

    # --- run: the systems take turns, each on a clock that counts its own steps only
    total = len(workload.sessions) * len(replays)
    try:
        with (
            ExitStack() as open_log,
            tqdm(total=total, desc="serve", unit="request") as bar,
        ):
            if EVENTS.value:
                log = EventLog(
                    EVENTS.value,
                    num_blocks_per_group=executors[PAGED].cache_plan.blocks_per_group,
                    block_size=plan.block_size,
                )
                open_log.enter_context(log)
                replays[PAGED].replicas[0].engine.scheduler.journal.listener = log
            serve_in_turns(list(replays.values()), bar.update)
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1

    # --- report: the table first, so that a full disk loses nothing
    facts = run_facts(info)
    rows = []
    for name, run in kept.items():
        outputs = [run.outputs[index] for index in range(len(workload.prompts))]
        right, answered = score_recall(workload.prompts, outputs)
        metrics = {
            **serving_metrics(run.requests, run.steps),
            "recall_right": right,
            "recall_answered": answered,
            "num_raised": workload.num_raised,
            "num_programs": executors[name].num_programs,
            "compile_s": compile_s[name],
        }
        rows.append(
            {
                **facts,
                "system": name,
                "config": config.to_dict(),
                "pool": pool,
                "metrics": metrics,
            }
        )
    print(serve_table(rows, with_sharing=config.cache.prefix_caching))
    print(
        "The systems share their programs: the first compiles them (or finds them in\n"
        "jax's cache on disk), the others find them compiled.\n"
    )
    print(closing_words(rows), end="\n\n")
    failed = False
    for one, other in itertools.combinations(kept, 2):
        if differing := differing_requests(kept[one], kept[other]):
            failed = True
            print(f"FAILED: {other} and {one} differ in requests {differing}.")
    rejected = {name: rejections(run) for name, run in kept.items()}
    for name, messages in rejected.items():
        if messages:
            first, message = next(iter(messages.items()))
            print(f"{name} rejected requests {[*messages]}; of {first} it says: {message}")
    any_rejected = any(rejected.values())
    if not failed:
        which = "in the rows that served them" if any_rejected else "in all rows"
        print(f"All tokens of all {len(workload.sessions)} requests are equal {which}.")

    # --- write
    try:
        save_rows(folder / "rows.jsonl", rows)
        print(f"Rows were added to {folder / 'rows.jsonl'}.")
        draw_serving(rows, folder / "serve.png")
        print(f"The figure is {folder / 'serve.png'}.")
    except ResultsNotWritten as error:
        failed = True
        print(f"FAILED: {error}")
    except ImportError as error:
        print(f"No figure: {error}")
    if any_rejected:
        room = "pool_positions" if config.pool_positions else "cache.memory_fraction"
        print(
            "FAILED: requests were rejected, so the rows served different work. "
            f"Raise --config.{room}; the pool has {pool['positions']:,} positions."
        )
    return int(failed or any_rejected)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)
