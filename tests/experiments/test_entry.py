"""What is wrong with the flags of an experiment ends it with one line that says so."""

import pytest

from tests.experiments.running import run_experiment


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            ["--config.cache.blok=3"],
            "--config.cache.blok is no key of configs/serve.py; "
            "nearest: cache.block_size. Keys of cache: block_size, checksums, ",
        ),
        (["--config.block_size=3", "--config.seed=0"], "nearest: cache.block_size."),
        (
            ["--config=configs/serve.py", "--config.pool_position=3"],
            "nearest: pool_positions. Keys of config: allocators, output_folder, pool_pos",
        ),
        (["--config", "configs/serve.py", "--config.zzz", "1"], "config.zzz is no key of"),
        (["--noconfig.engine.chek"], "nearest: engine.check_invariants."),
        (["--config.engine.max_num_seqs=3"], "nearest: scheduler.max_num_seqs."),
        (["--config.cache=3"], "--config.cache is no key of"),
        (["--config.allocators[9]=paged"], "nearest: allocators."),
        (["--config=/nope.py"], "--config=/nope.py is no file."),
        (["--config=LICENSE"], "--config=LICENSE: unexpected indent (LICENSE, line "),
        (["--config=paxkv/types.py"], "--config=paxkv/types.py: module "),
        (
            ["--config=configs/trial.py"],
            "--config=configs/trial.py has no allocators, pool_positions, weights_dtype; "
            "see configs/serve.py.",
        ),
        (
            ["--config=configs/trial.py:opt_13"],
            "--config=configs/trial.py:opt_13: 'opt_13' is no part of a trial; nearest: "
            "opt_13b.",
        ),
        (
            ["--config=configs/trial.py:h100,h200"],
            "'h100' and 'h200' are both of configs/chips; name one.",
        ),
        (
            ["--config.cache.block_size=two"],
            "--config.cache.block_size=two: invalid literal",
        ),
        (["--confg.pool_positions=3"], "Unknown command line flag 'confg.pool_positions'"),
    ],
)
def test_wrong_flags_are_one_line(flags, named):
    done = run_experiment("serve", *flags)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("FATAL Flags parsing error: ")
    assert named in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "flags", "line"),
    [
        ("serve", ["32"], "error: unknown arguments ['32']; flags start with --."),
        ("parity", ["--config.cache.blok=3"], "nearest: cache.block_size."),
        ("capacity", ["--seeds="], "error: --seeds is empty; name at least one number."),
        ("parity", ["--weights=nowhere", "--reference=nowhere"], "error: "),
        ("convert", ["--out=nowhere"], "FATAL Flags parsing error: flag --weights="),
        ("perplexity", ["--model=nowhere", "--text=nowhere"], "error: "),
        ("train_recall", ["--out=LICENSE", "--work_dir=nowhere"], "error: --out=LICENSE"),
    ],
)
def test_no_experiment_answers_with_a_page(name, flags, line):
    done = run_experiment(name, *flags)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr
    assert done.stdout == ""
