"""What does not compile as it must ends the run with 1, by name; wrong flags with 2.

The program for --target=cpu compiles wherever jax does, so it stands for the others.
"""

import importlib.util
import json
import subprocess

import pytest

from tests.experiments.running import ROOT, run_experiment

ONE_CASE = ("--target=cpu", "--ops=paged_attention", "--cases=^head_dim80$")
COMPILE_PYTHON = ROOT / ".venv-compile/bin/python"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--target=v9"], "--target=v9 is unknown; choose from v4, v5e, "),
        (["--ops=attend"], "--ops=attend is unknown; choose from paged_attention, "),
        (["--implementations=cuda"], "--implementations=cuda is unknown; choose from tpu"),
        (["--target=cpu", "--cases=("], "--cases=( is no regular expression: "),
        (["--target=cpu", "--cases=gpt9"], "no case matches --cases=gpt9"),
        (["--targets=v4"], "Unknown command line flag 'targets'"),
        (["--target=cpu", "--out=LICENSE"], "--out=LICENSE is not a file that this"),
    ],
)
def test_wrong_flags_are_one_line(flags, line):
    done = run_experiment("compile_kernels", *flags)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="this Python has libtpu"
)
@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_a_missing_compiler_is_named_with_the_remedy(target):
    done = run_experiment("compile_kernels", f"--target={target}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --target={target} needs ")
    assert "bash scripts/compile.sh" in done.stderr


def test_a_program_that_reads_whole_tables_fails_and_is_named(tmp_path):
    """The reference gathers all blocks of a table, which nothing that serves may do."""
    out = tmp_path / "rows.jsonl"
    flags = (*ONE_CASE, "--implementations=reference", f"--out={out}")
    done = run_experiment("compile_kernels", *flags)
    assert done.returncode == 1
    name = "cpu paged_attention reference head_dim80 bfloat16"
    assert f"FAILED: {name}: temporaries of " in done.stdout
    assert "0 compiled, 1 failed, 0 refused, 0 not offered" in done.stdout
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["status"] == "failed"
    assert row["alias_bytes"] == row["pool_bytes"] < row["argument_bytes"]

    again = run_experiment("compile_kernels", *flags)  # reports, but compiles nothing
    assert again.returncode == 1
    assert f"FAILED: {name}: temporaries of " in again.stdout
    assert len(out.read_text().splitlines()) == 1


def test_what_compiles_and_what_is_not_offered_are_both_listed():
    flags = (*ONE_CASE, "--implementations=xla,tpu")
    done = run_experiment("compile_kernels", *flags)
    assert done.returncode == 0, done.stderr
    assert (
        "refused: cpu paged_attention tpu head_dim80 bfloat16: ValueError: " in done.stdout
    )
    assert "1 compiled, 0 failed, 1 refused, 0 not offered" in done.stdout


@pytest.mark.skipif(
    not COMPILE_PYTHON.exists(), reason="no .venv-compile; scripts/compile.sh makes it"
)
def test_a_tpu_kernel_compiles_without_a_tpu():
    flags = ["--target=v5e", "--ops=write_kv", "--implementations=tpu", "--cases=^mqa$"]
    done = subprocess.run(
        [COMPILE_PYTHON, "-m", "experiments.compile_kernels", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 compiled, 0 failed" in done.stdout
