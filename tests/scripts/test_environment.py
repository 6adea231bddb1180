"""The set-up scripts' choices, on pretended machines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="the scripts need bash")


def bash(command: str, first_on_path: Path | None = None) -> subprocess.CompletedProcess:
    path = f"{first_on_path}:{os.environ['PATH']}" if first_on_path else os.environ["PATH"]
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source scripts/environment.sh; {command}"],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def add_command(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("driver", "extra"), [("550.54.15", "cuda12"), ("580.65.06", "cuda13"), ("?", "cuda12")]
)
def test_cuda_follows_the_driver(tmp_path: Path, driver: str, extra: str) -> None:
    add_command(tmp_path / "bin", "nvidia-smi", f"echo '{driver}'")
    assert bash("accelerator_extra", tmp_path / "bin").stdout.split() == [extra]


@pytest.mark.parametrize(
    ("vendor", "device", "found"),
    [
        ("0x1ae0", "0x0063", True),  # TPU v5e
        ("0x1ae0", "0x0042", False),  # Google's network card
        ("0x8086", "0x0063", False),
    ],
)
def test_tpu_is_seen_on_the_pci_bus(
    tmp_path: Path, vendor: str, device: str, found: bool
) -> None:
    card = tmp_path / "0000:00:05.0"
    card.mkdir()
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")
    assert (bash(f"has_tpu '{tmp_path}'").returncode == 0) is found


def test_a_shim_that_fails_is_no_python(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    add_command(tmp_path / "bin", f"python{version}", "echo no such version >&2; exit 127")
    add_command(tmp_path / "bin", "python3", f'exec "{sys.executable}" "$@"')
    found = bash(f"find_python {version}", tmp_path / "bin").stdout.strip()
    assert found
    assert not found.startswith(str(tmp_path))


def test_an_absent_python_is_not_found() -> None:
    assert bash("find_python 3.99").returncode != 0


def test_an_interrupted_environment_is_not_reused(tmp_path: Path) -> None:
    """The marker outside the folder outlives whatever is in it."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    assert (
        bash(f"usable_python '{tmp_path}/env'").stdout.strip()
        == f"{tmp_path}/env/bin/python"
    )
    (tmp_path / "env.incomplete").touch()
    assert (
        bash(f"usable_python '{tmp_path}/env'").stdout.strip()
        != f"{tmp_path}/env/bin/python"
    )


def test_extras_accumulate() -> None:
    assert bash("merged_extras plots dev,gguf,plots").stdout.strip() == "dev,gguf,plots"


def test_a_default_config_is_added_only_where_none_is_named(tmp_path: Path) -> None:
    """run.sh is run in a copy whose environment is a stand-in that prints its arguments."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # answers the version check of the scripts, and echoes everything else
    add_command(
        tmp_path / "bin",
        "python",
        f'[ "$1" = -c ] && exec "{sys.executable}" "$@"; echo "$@"',
    )
    (tmp_path / ".venv").mkdir()
    (tmp_path / "bin").rename(tmp_path / ".venv/bin")
    made_from = subprocess.run(
        ["bash", "-c", "source scripts/environment.sh; made_from .venv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / ".venv/installed").write_text(f"plots,cuda12,cuda13,tpu\n{made_from}")

    def last_line(*arguments: str) -> str:
        command = ["bash", str(tmp_path / "scripts/run.sh"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    serve = "-m experiments.serve"
    default = "--config=configs/serve.py"
    assert last_line() == f"{serve} {default}"
    override = "--config.cache.block_size=32"
    assert last_line(override) == f"{serve} {default} {override}"
    assert last_line("--config=mine.py", "--x") == f"{serve} --config=mine.py --x"
