"""The two costs of `swap_or_recompute`, measured as a user does, with few sizes."""

import json

from paxkv.config import SchedulerConfig
from tests.experiments.running import run_experiment

MODEL = "--model=paxkv/assets/recall"


def test_costs_are_printed_and_written(tmp_path):
    out = tmp_path / "costs.jsonl"
    done = run_experiment(
        "measure_relocation",
        MODEL,
        "--blocks=1,128",
        "--tokens=16,512",
        "--rounds=3",
        "--kv_dtype=int8",
        "--implementation=xla",
        f"--out={out}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["kind"] == "measured" and row["device"] and row["versions"]["jax"]
    assert row["crossover_tokens_per_block"] > 0
    assert row["swap"]["sizes"] == [1, 128] and row["recompute"]["sizes"] == [16, 512]
    printed = dict(
        line.split("=")
        for line in done.stdout.splitlines()
        if line.startswith(("sw", "re"))
    )
    config = SchedulerConfig(**{name: float(text) for name, text in printed.items()})
    assert config.swap_s_per_block > 0 and config.recompute_s_per_token > 0
    assert f"{row['swap_s_per_block']:.3e}" == printed["swap_s_per_block"]
    for words in ("measured on", "residuals up to", "int8 cache", "Swapping pays from"):
        assert words in done.stdout


def test_sizes_that_no_line_goes_through_are_refused():
    for flag, says in (("--tokens=512", "token_counts=[512]"), ("--blocks=a", "numbers")):
        done = run_experiment("measure_relocation", MODEL, flag)
        assert done.returncode == 2
        assert says in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
