"""The same cells as tasks of a Ray cluster of this machine, which ends with the call."""

import importlib.util
from collections import Counter
from functools import partial

import pytest

from paxkv.sweeps.ray_tasks import require_ray, run_on_ray
from paxkv.sweeps.table import DONE, FAILED
from tests.paxkv.sweeps.fake_sweep import fake_cells, rows_in, sweep_once

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray, an extra, is not installed"
)


@needs_ray
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_cells_run_as_tasks_and_the_caller_writes_the_table(tmp_path):
    cells = fake_cells({"fake.does": ("ends", "fails", "crashes")}, seeds=(0, 1))
    execute = partial(run_on_ray, num_workers=1)
    table = sweep_once(tmp_path, cells, execute=execute)
    assert Counter(table.status(cell.cell_id) for cell in cells) == {DONE: 2, FAILED: 4}
    done = [row for row in rows_in(tmp_path) if row["status"] == DONE]
    assert Counter((row["seed"], row["profile"]) for row in done) == Counter(
        (seed, profile) for seed in (0, 1) for profile in (0, 1)
    )
    import ray

    assert not ray.is_initialized()


def test_without_ray_the_remedy_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'paxkv\[ray\]'"):
        require_ray()
