"""Which programs are compiled, and how their rows are told."""

from dataclasses import asdict

import pytest

from pallas_kernels.aot.targets import TARGETS
from paxkv.aot.jobs import ALL_OPS, Job, make_jobs, source_digest
from paxkv.aot.report import failures, summary, table, unexpected_gaps

CHIPS = [name for name, target in TARGETS.items() if target.platform != "cpu"]


def jobs_of(targets=CHIPS, **changes):
    settings = dict(ops=ALL_OPS, cases="", implementations=[], subset=False)
    return make_jobs(targets, **(settings | changes))


def test_every_op_of_every_chip():
    jobs = jobs_of()
    assert len(set(jobs)) == len(jobs)
    for name in CHIPS:
        own = [job for job in jobs if job.target == name]
        sharded = TARGETS[name].platform == "tpu"
        assert {job.op for job in own} == set(ALL_OPS) - (
            set() if sharded else {"sharded_decode_step"}
        )
        assert {job.implementation for job in own} == set(TARGETS[name].implementations)


def test_the_subset_is_a_small_part():
    jobs, subset = jobs_of(), jobs_of(subset=True)
    assert set(subset) <= set(jobs)
    assert len(subset) < len(jobs) / 5
    assert {job.op for job in subset} == set(ALL_OPS)


@pytest.mark.parametrize("pattern", ["^llama3_8b$", "gemma|smollm"])
def test_cases_are_searched(pattern):
    names = {job.case for job in jobs_of(cases=pattern, ops=["paged_attention"])}
    assert names == (
        {"llama3_8b"} if "llama" in pattern else {"gemma2_9b", "gemma3_1b", "smollm_135m"}
    )


def test_sources_have_one_digest(tmp_path):
    (tmp_path / "paxkv").mkdir()
    file = tmp_path / "paxkv/a.py"
    file.write_text("a = 1")
    before = source_digest(tmp_path)
    assert before == source_digest(tmp_path)
    file.write_text("a = 2")
    assert before != source_digest(tmp_path)


def row(job: Job, status: str, **more):
    return {**asdict(job), "status": status, "problems": [], "message": "", **more}


def test_report():
    ok, missing, refused, failed = jobs_of(["h100"], cases="^llama3_8b$")[:4]
    compiled = dict(
        compile_s=2.5,
        vmem_bytes=None,
        smem_bytes=None,
        kernels=[dict(name="k", registers=168, spill_bytes=4, shared_bytes=2048)],
        temp_bytes=10**6,
        alias_bytes=3 * 10**8,
        pool_bytes=3 * 10**8,
        padding_factor=1.25,
    )
    rows = [
        row(ok, "ok", **compiled),
        row(missing, "not offered"),
        row(refused, "refused", message="ValueError: block size 1"),
        row(failed, "failed", problems=["it spills", "it copies"]),
    ]
    header, first, *_ = table(rows).splitlines()
    assert header.split()[:3] == ["target", "op", "implementation"]
    wanted = ["ok", "2.5", "-", "-", "2.0", "168", "4", "1.00", "300.0", "300.0", "1.25"]
    assert first.split()[-len(wanted) :] == wanted
    lines = summary(rows).splitlines()
    assert lines[0].startswith("not offered: h100 ") and lines[0].endswith("(1 cases)")
    assert f"refused: {refused}: ValueError: block size 1" in lines
    assert f"FAILED: {failed}: it spills" in lines
    assert f"FAILED: {failed}: it copies" in lines
    assert lines[-1] == "1 compiled, 1 failed, 1 refused, 1 not offered"
    gaps = unexpected_gaps(rows)
    assert gaps == [f"{missing}: not offered", f"{refused}: refused"]
    on_b200 = [{**row, "target": "b200", "implementation": "gpu"} for row in rows]
    assert unexpected_gaps(on_b200) == []
    assert failures(rows) == [rows[3]]
    assert Job.of_row(rows[0]) == ok
