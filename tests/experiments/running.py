"""Runs an experiment as a user does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_experiment(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Its output and exit code; it may take ten minutes."""
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
