"""What became of a job, as the child process tells it."""

import io

import pytest

from pallas_kernels.aot.targets import TARGETS
from paxkv.aot import worker
from paxkv.aot.decode_step import STEP_CASES, decode_step
from paxkv.aot.jobs import Job

JOB = Job(
    target="cpu",
    op="write_kv",
    implementation="xla",
    case="smollm_135m",
    dtype="float32",
)


def compile_job(job: Job = JOB):
    return worker.compile_job(job, TARGETS[job.target], io.StringIO(), "")


def test_a_program_that_is_in_place():
    found = compile_job()
    assert (found["status"], found["problems"]) == ("ok", [])
    assert found["alias_bytes"] == found["pool_bytes"] >= 2**28
    assert found["temp_bytes"] < found["temp_limit"]


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_only_a_kernel_may_refuse(monkeypatch, error):
    """An error of a compiler, or of this harness, is a failure whatever its type."""

    def fail(*args, **kwargs):
        raise error("shapes disagree")

    monkeypatch.setattr(worker, "measure", fail)
    found = compile_job()
    assert found["status"] == "failed"
    assert found["problems"] == [f"{error.__name__}: shapes disagree"]


@pytest.mark.parametrize("name", STEP_CASES)
def test_the_step_is_traced_without_weights(name):
    program = decode_step(STEP_CASES[name], "xla", "gpu", device_kind=None)
    assert program.pool.num_layers == STEP_CASES[name].num_layers
    program.run.trace(*program.arguments, **program.keywords)
