"""docs/experiments.md: the commands of its recipes run in reduced form, and what it names
exists."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paxkv.analysis.reports.loading import load_rows
from paxkv.workloads.traces.formats import FORMATS

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "experiments.md").read_text()
PYTHON = ".venv/bin/python"
MOONCAKE = "conversation_trace.jsonl"
SHORT = "--config.workload.num_requests=12"
ONE_PROFILE = "--config.profiles=('calibrated',)"
# what a TPU recipe runs with here: the shipped model, on this machine
HERE = {
    "configs/local.py:gemma3_270m,tpu_v5e": "configs/local.py",
    "checkpoints/gemma-3-270m": "paxkv/assets/recall",
    "bfloat16": "float32",
}


def recipe(number: int) -> str:
    """The text below its heading."""
    (text,) = re.findall(rf"^## Recipe {number}: .*?\n(.*?)(?=^## )", DOC, re.M | re.S)
    return text


def commands(text: str) -> list[list[str]]:
    """Each command of the shell blocks, as its words."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


@pytest.fixture
def run(tmp_path):
    """Runs a command of the page in a folder that looks like the checkout."""
    for name in ("paxkv", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)

    def run_command(words: list[str], *more: str, code: int = 0) -> str:
        assert words[:2] == [PYTHON, "-m"]
        done = subprocess.run(
            [sys.executable, *words[1:], *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run_command


def test_recipe_1_compares_block_sizes(run, tmp_path):
    sweeping, reporting = commands(recipe(1))
    out = run(sweeping, SHORT, "--config.sweep.seeds=0,", *grid(16, 256), ONE_PROFILE)
    assert "2 of 2 cells are done" in out
    out = run(reporting)
    assert "calibrated profile" in out and "Tail waste and metadata kept" in out
    assert (tmp_path / reporting[-1] / "report" / "report.html").is_file()


def grid(*block_sizes: int) -> tuple[str, ...]:
    values = ",".join(map(str, block_sizes))
    return (f"--config.sweep.grid.cache.block_size={values}",)


def test_recipe_2_tries_a_policy_on_a_trace(run, tmp_path):
    text = recipe(2)
    (policy,) = re.findall(r"^```python\n(# my_file\.py\n.*?)^```", text, re.M | re.S)
    (tmp_path / "my_file.py").write_text(policy)
    with open(tmp_path / MOONCAKE, "w") as file:
        # r comes back; three of o, which do not, fill the pool
        for i, kind in enumerate("rroooroooroo"):
            hashes = [0, 1, 2] if kind == "r" else [*range(40 * i, 40 * i + 40)]
            row = {"timestamp": 5_000 * i, "input_length": 512 * len(hashes)}
            file.write(json.dumps(row | {"output_length": 20, "hash_ids": hashes}) + "\n")
    first, second, comparing = commands(text)
    for words in (first, second):
        out = run(words, SHORT, ONE_PROFILE, "--config.cache.num_blocks=200")
        assert "Rows were added to results/" in out
    folders = [tmp_path / "results" / name for name in ("released", "used_once")]
    theirs, ours = (row["metrics"] for row in load_rows(folders).rows)
    assert theirs["num_finished"] == ours["num_finished"] == 12
    assert 0 < theirs["prefix_hit_percent"] < ours["prefix_hit_percent"]
    differ = "They differ in cache.eviction (released → my_file.py:UsedOnce)."
    assert differ in run(comparing)


def test_recipe_3_sizes_a_tpu(run):
    refused, *searches = commands(recipe(3))
    error = run(refused, code=2)
    said = re.findall(r"^```text\n(error: .*?)^```", recipe(3), re.M | re.S)
    assert error.split() == said[0].split()
    reduced = (SHORT, ONE_PROFILE, "--tolerance=0.5", "--highest=16")
    for words in searches:
        out = run(words, *reduced)
        assert "p95 of TTFT within 1 s and of TPOT within 0.05 s" in out
        assert "calibrated: capacity, requests/s: " in out


def test_recipe_4_finds_the_knob(run):
    slow, diagnosing, faster, comparing = commands(recipe(4))
    reduced = ("--config.workload.num_requests=150", ONE_PROFILE)
    run(slow, *reduced)
    out = run(diagnosing)
    assert "Knob: raise scheduler.max_num_seqs (--config.scheduler.max_num_seqs=32)" in out
    assert "Confirmed: scheduler.max_num_seqs helps most" in out
    run(faster, *reduced)
    out = run(comparing)
    assert "They differ in scheduler.max_num_seqs (16 → 32)." in out
    (ratio,) = re.findall(r"^TTFT p95, s .* ([\d.]+)$", out, re.M)
    assert float(ratio) < 0.5


def test_recipe_5_serves_calibrates_and_predicts(run, tmp_path):
    assert "**Not run here: no TPU was available.**" in recipe(5)
    (script, *words_of) = [[here(word) for word in c] for c in commands(recipe(5))]
    assert script == ["bash", "scripts/run.sh"]
    serving, calibrating, predicting, comparing = words_of
    assert "measured: paxkv/assets/recall on " in run(serving, SHORT)
    assert "last third" in run(calibrating)
    assert "Rows were added to" in run(predicting, SHORT)
    out = run(comparing)
    assert "THEY RAN IN DIFFERENT PLACES" in out
    both = load_rows([tmp_path / "results/tpu", tmp_path / "results/tpu_predicted"]).rows
    assert [row["kind"] for row in both] == ["measured", "simulated"]
    same = [row["metrics"]["num_output_tokens"] for row in both]
    assert same[0] == same[1] > 0


def here(word: str) -> str:
    for there, ours in HERE.items():
        word = word.replace(there, ours)
    return word


def test_the_page_names_every_format_and_what_exists():
    for module in re.findall(r"-m (experiments\.\w+)", DOC):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
    (table,) = re.findall(r"^## Traces\n(.*?)(?=^## )", DOC, re.M | re.S)
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.M)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(FORMATS)
    folders = "|".join(("configs", "experiments", "paxkv", "scripts"))
    for path in re.findall(rf"`((?:{folders})/[\w/.]+)`", DOC):
        assert (ROOT / path).exists(), path
    (parts,) = re.findall(r"^\| part \|.*?\n\n", DOC, re.M | re.S)
    for row in re.findall(r"^\| \w+ \| `(configs/\w+)` \| .* \| (.*) \|$", parts, re.M):
        for name in re.findall(r"`(\w+)`", row[1]):
            assert (ROOT / row[0] / f"{name}.py").is_file(), name


def test_its_json_is_a_session():
    (line,) = re.findall(r"^```json\n(.*?)^```", DOC, re.M | re.S)
    assert FORMATS["paxkv"].matches(line)
    assert not [name for name, kind in FORMATS.items() if kind.matches(line)][1:]
