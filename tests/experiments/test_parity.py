"""Parity, as a user runs it, on a fixture; on Gemma 3 270M where its file is at hand."""

import json
import os
import subprocess

import numpy as np
import pytest

from tests.experiments.running import ROOT, run_experiment
from tests.paxkv.models.hf_fixtures import FOLDER, expected_of

# By transformers in float32, from the weights of a Q4_K_M file; it says how.
REFERENCE = ROOT / "tests/fixtures/gemma3_270m_greedy.json"
GEMMA = os.environ.get("PAXKV_GEMMA3_GGUF")  # the path of that file


def reference_of(name: str) -> dict:
    """A fixture's expectation in the form of a reference file."""
    expected = expected_of(name)
    last = expected.positions.index(len(expected.prompt_ids) - 1)
    logits = expected.logits[last].astype(np.float64)
    best = np.argsort(logits)[::-1][:5]
    return {
        "prompt_ids": expected.prompt_ids,
        "generated_ids": expected.greedy_ids,
        "first_top5_ids": best.tolist(),
        "first_top5_logits": logits[best].tolist(),
        "first_logsumexp": float(np.log(np.exp(logits).sum())),
    }


def run_on_fixture(tmp_path, reference, *flags: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "reference.json").write_text(json.dumps(reference))
    return run_experiment(
        "parity",
        f"--weights={FOLDER / 'mistral'}",
        f"--reference={tmp_path / 'reference.json'}",
        "--config.engine.max_context=128",
        "--config.scheduler.max_num_seqs=2",
        "--config.scheduler.max_num_batched_tokens=16",
        *flags,
    )


def test_equal_tokens_pass_in_a_pool_of_one_sequence_and_a_block(tmp_path):
    case = reference_of("mistral")
    without_logsumexp = {k: v for k, v in case.items() if k != "first_logsumexp"}
    reference = {"model": "mistral", "short": [case], "long": without_logsumexp}
    done = run_on_fixture(
        tmp_path, reference, "--config.cache.block_size=7", "--config.pool_positions=77"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 blocks x 7 tokens" in done.stdout
    assert "ok   short[0]: prompt of 40, 24 of 24 tokens equal" in done.stdout
    assert "ok   long: prompt of 40, 24 of 24 tokens equal" in done.stdout


def test_a_differing_token_or_logit_fails(tmp_path):
    token, logit = reference_of("mistral"), reference_of("mistral")
    token["generated_ids"] = [*token["generated_ids"][:-1], 0]
    logit["first_top5_logits"][2] += 0.01
    done = run_on_fixture(tmp_path, [token, logit])
    assert done.returncode == 1
    assert "FAIL reference[0]: prompt of 40, 23 of 24 tokens equal" in done.stdout
    assert "FAIL reference[1]: prompt of 40, 24 of 24 tokens equal" in done.stdout


@pytest.mark.parametrize("reference", [{"prompts": []}, {"prompt_ids": [1]}])
def test_a_file_that_is_no_reference(tmp_path, reference):
    done = run_on_fixture(tmp_path, reference)
    assert done.returncode != 0
    assert "reference.json" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(
    GEMMA is None, reason="needs PAXKV_GEMMA3_GGUF=path of Gemma 3 270M's Q4_K_M file"
)
def test_gemma_3_270m():
    done = run_experiment("parity", f"--weights={GEMMA}", f"--reference={REFERENCE}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("64 of 64 tokens equal") == 4
