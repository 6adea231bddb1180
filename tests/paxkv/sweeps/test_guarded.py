"""A guarded process ends with the one that started it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUARDED = [sys.executable, "-m", "paxkv.sweeps.guarded"]


def is_running(pid: int) -> bool:
    """A process that has ended and waits for its parent to see it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(holds, limit_s: float = 10.0) -> bool:
    end_s = time.monotonic() + limit_s
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.02)
    return holds()


@pytest.fixture
def module(tmp_path):
    """A folder for a module `guest` with some text."""

    def write(text: str) -> dict[str, str]:
        (tmp_path / "guest.py").write_text(text)
        return {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}

    return write


def test_the_module_runs_as_the_main_one(module):
    env = module(
        "import sys\nprint(__name__, sys.argv[1:], repr(sys.stdin.read()))\nsys.exit(3)"
    )
    with subprocess.Popen(
        [*GUARDED, "guest", "--config.a=(1, 2)", "b c"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.wait(30) == 3
        assert process.stdout is not None
        assert process.stdout.read() == "__main__ ['--config.a=(1, 2)', 'b c'] ''\n"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_closing_the_pipe_ends_the_whole_group(module, tmp_path):
    env = module(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*GUARDED, "guest"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    grandchild = int(process.stdout.readline())
    assert is_running(grandchild)
    process.stdin.close()
    assert process.wait(10) == -9
    assert wait_until(lambda: not is_running(grandchild))
    process.stdout.close()


def test_a_group_that_it_does_not_lead_is_left_alone(module):
    """Here the group is that of the tests, which go on."""
    env = module("import time\nprint('runs', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [*GUARDED, "guest"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.stdin.close()
        assert process.wait(10) == -9
