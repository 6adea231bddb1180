"""What is shared, counted as a user does, without jax."""

import json

from tests.experiments.running import run_experiment


def test_the_default_run_shares_exactly_312_blocks(tmp_path):
    out = tmp_path / "sharing.jsonl"
    done = run_experiment("count_sharing", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "owners, shared: 500 blocks have 1, 312 blocks have 100" in done.stdout
    assert "97.44" in done.stdout
    apart, shared = [json.loads(line) for line in out.read_text().splitlines()]
    assert (apart["shares"], shared["shares"]) == (False, True)
    assert apart["by_owners"][0] == {"1": 31_700}
    assert shared["by_owners"][0] == {"1": 500, "100": 312}
    assert shared["load"]["num_shared"] == 4992 and shared["kind"] == "simulated"


def test_bad_sizes_are_refused_in_one_line():
    for flag, says in (("--requests=0", "num_requests=0"), ("--window=0", "window")):
        done = run_experiment("count_sharing", flag)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
