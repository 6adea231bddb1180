"""The README's programs do what it says."""

import re
import subprocess
import sys
from pathlib import Path

from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from tests.harness import BASE, Case, Work, serve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


def program_with(text: str) -> str:
    (program,) = [program for program in PROGRAMS if text in program]
    return program


def test_the_eight_line_program_answers():
    run = subprocess.run(
        [sys.executable, "-c", program_with("LLM(")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "k7=Qx;a3=Ab;p0=Zu;?a3k7: AbQx stop",
        "b1=Hi;?b1: Hi stop",
    ]


def test_the_policy_chooses_and_changes_no_token(monkeypatch):
    namespace: dict = {}
    exec(program_with("def most_tokens"), namespace)
    sampling = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    work = tuple(Work(prompt_ids=tuple(range(n)), sampling=sampling) for n in (30, 20, 9))
    expected = serve(BASE, work)
    chosen = []

    def most_tokens(candidates):
        chosen.append(namespace["most_tokens"](candidates))
        return chosen[-1]

    monkeypatch.setitem(VICTIM_POLICIES, "newest", most_tokens)
    assert serve(Case(pool_tokens=80), work) == expected
    assert chosen
