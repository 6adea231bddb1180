"""What a smaller format of the KV pool costs: recall, and logits against float32.

    python -m experiments.kv_formats --out=results/kv_formats.jsonl

Serves one recall workload per format, with float32 weights, and compares the logits of
each prompt's positions with those of a float32 pool. Bytes are those of the arrays.
"""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from paxkv import LLM, SamplingParams
from paxkv.models.loading import load_decoder
from paxkv.platform import current_device, resolve_implementation
from paxkv.prompt_logits import prompt_logits
from paxkv.results import ResultsNotWritten, RunInfo, prepare_folder, run_facts, save_rows
from paxkv.workloads.recall_workload import RecallWorkload, recall_workload, score_recall
from paxkv.workloads.workload_config import WorkloadConfig

MODEL = flags.DEFINE_string("model", "paxkv/assets/recall", "A model of the recall task.")
FORMATS = flags.DEFINE_list(
    "formats", ["float32", "bfloat16", "float8_e4m3fn", "int8"], "The first is the base."
)
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens per block.")
REQUESTS = flags.DEFINE_integer("requests", 48, "In the workload.")
SEED = flags.DEFINE_integer("seed", 0, "Of the workload.")
IMPLEMENTATION = flags.DEFINE_string("implementation", "auto", "Of attention and writes.")
OUT = flags.DEFINE_string("out", "results/kv_formats.jsonl", "Rows are added here.")

HEADER = (
    f"{'format':>14} {'bytes/token':>11} {'recall':>9} {'logit error: mean':>18} "
    f"{'p99':>7} {'max':>7} {'same top-1, %':>14}"
)


def serve(kv_format: str, workload: RecallWorkload) -> tuple[LLM, list[list[int]]]:
    """Greedy outputs of the workload, stop bytes ignored."""
    llm = LLM(
        MODEL.value,
        kv_cache_dtype=kv_format,
        block_size=BLOCK_SIZE.value,
        max_num_seqs=16,
        implementation=IMPLEMENTATION.value,
    )
    settings = [
        SamplingParams(max_tokens=turn.max_tokens, temperature=0.0, ignore_eos=True)
        for turn in workload.turns
    ]
    outputs = llm.generate([turn.prompt_ids for turn in workload.turns], settings)
    return llm, [list(output.outputs[0].token_ids) for output in outputs]


def compare(base: list[np.ndarray], logits: list[np.ndarray]) -> dict[str, float]:
    """Errors over all prompts, positions and tokens."""
    errors = np.concatenate(
        [np.abs(a - b).ravel() for a, b in zip(base, logits, strict=True)]
    )
    same = [(a.argmax(1) == b.argmax(1)) for a, b in zip(base, logits, strict=True)]
    return {
        "logit_error_mean": float(errors.mean()),
        "logit_error_p99": float(np.percentile(errors, 99)),
        "logit_error_max": float(errors.max()),
        "same_top1_percent": 100 * float(np.concatenate(same).mean()),
    }


def line(row: dict[str, Any]) -> str:
    recall = f"{row['recall_right']}/{row['recall_answered']}"
    return (
        f"{row['format']:>14} {row['bytes_per_token']:>11,.0f} {recall:>9}"
        f" {row['logit_error_mean']:>18.5f} {row['logit_error_p99']:>7.4f}"
        f" {row['logit_error_max']:>7.4f} {row['same_top1_percent']:>14.2f}"
    )


def main() -> None:
    logging.set_verbosity(logging.WARNING)
    try:
        prepare_folder(Path(OUT.value).parent)
        decoder = load_decoder(MODEL.value, "float32")
        workload = recall_workload(
            WorkloadConfig(num_requests=REQUESTS.value, seed=SEED.value),
            decoder.config.max_context,
        )
        device = current_device()
        implementation = resolve_implementation(IMPLEMENTATION.value, device.platform)
        facts = run_facts(
            RunInfo(
                experiment="kv_formats",
                kind="measured",
                command=shlex.join(
                    ["python", "-m", "experiments.kv_formats", *sys.argv[1:]]
                ),
                seed=SEED.value,
                device=device.name,
                implementation=implementation,
                matmul_precision="highest",
                xla_flags="",
            )
        )
        print(f"{device.name}: {implementation} attention, float32 weights\n{HEADER}")
        rows: list[dict[str, Any]] = []
        base_logits: list[np.ndarray] = []
        for kv_format in FORMATS.value:
            llm, tokens = serve(kv_format, workload)
            logits = [
                prompt_logits(
                    decoder,
                    turn.prompt_ids,
                    kv_dtype=kv_format,
                    block_size=BLOCK_SIZE.value,
                    implementation=implementation,
                    platform=device.platform,
                )
                for turn in tqdm(workload.turns, kv_format, leave=False)
            ]
            base_logits = base_logits or logits
            right, answered = score_recall(workload.prompts, tokens)
            positions = llm.executor.cache_plan.num_blocks * BLOCK_SIZE.value
            row = {
                "format": kv_format,
                "bytes_per_token": sum(
                    x.nbytes for x in jax.tree.leaves(llm.executor.cache)
                )
                / positions,
                "recall_right": right,
                "recall_answered": answered,
                **compare(base_logits, logits),
            }
            assert all(math.isfinite(x) for x in row.values() if isinstance(x, float)), row
            print(line(row), flush=True)
            rows.append({**facts, **row})
        save_rows(Path(OUT.value), rows)
    except ResultsNotWritten as error:
        raise SystemExit(f"FAILED: {error}") from error
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    print(f"Rows were added to {OUT.value}.")


if __name__ == "__main__":
    entry.run(main)
