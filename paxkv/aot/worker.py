"""The child process that compiles for one target: jobs in, rows out, a line each.

    python -m paxkv.aot.worker TARGET DUMP_FOLDER

Its environment must be the target's before jax is imported, hence a process of its own.
"""

import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pallas_kernels
from pallas_kernels.aot.cases import CASES
from pallas_kernels.aot.gpu_code import KernelUse, kernels_in
from pallas_kernels.aot.measure import Measurement, measure, problems
from pallas_kernels.aot.programs import Program, is_offered, op_program
from pallas_kernels.aot.targets import TARGETS, Target
from paxkv.aot.decode_step import STEP_CASES, decode_step, sharded_decode_step
from paxkv.aot.jobs import MAX_MESSAGE, Job

_KERNELS = Path(pallas_kernels.__file__).parent


def compile_job(job: Job, target: Target, printed: Any, dump_folder: str) -> dict[str, Any]:
    """Compiles it; what came out, as a row."""
    row: dict[str, Any] = {**asdict(job), "status": "ok", "problems": [], "message": ""}
    started_s = time.perf_counter()
    try:
        if not _is_offered(job):
            return row | {"status": "not offered"}
        devices = target.devices(sharded=job.op == "sharded_decode_step")

        def make(multiple: int) -> tuple[Program, Measurement]:
            program = _program(job, target, devices, multiple)
            return program, measure(
                program, target, devices, lambda: _kernels(target, printed, dump_folder)
            )

        def make_doubled() -> Measurement:
            try:
                return make(2)[1]
            except Exception as error:  # a refusal only of this size is no refusal
                raise RuntimeError(f"with twice the blocks: {error}") from error

        program, found = make(1)
        row |= asdict(found)
        row["temp_limit"] = int(program.temp_limit)
        row["problems"] = problems(found, program, target, make_doubled)
        row["status"] = "failed" if row["problems"] else "ok"
    except Exception as error:  # a row, whatever a compiler raises
        message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
        row["message"] = message
        row["status"] = "refused" if _is_refusal(error) else "failed"
        if row["status"] == "failed":
            row["problems"] = [message]
    row["seconds"] = round(time.perf_counter() - started_s, 2)
    return row


def _is_offered(job: Job) -> bool:
    ops = (job.op,) if "decode_step" not in job.op else ("paged_attention", "write_kv")
    return all(is_offered(op, job.implementation) for op in ops)


def _is_refusal(error: Exception) -> bool:
    """Whether a kernel itself said that it does not take such a shape."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, ValueError) or not frames:
        return False
    raised_in = Path(frames[-1].filename)
    return raised_in.is_relative_to(_KERNELS) and raised_in.parent.name != "aot"


def _program(job: Job, target: Target, devices: list[Any], multiple: int) -> Program:
    if job.op == "decode_step":
        return decode_step(
            STEP_CASES[job.case],
            job.implementation,
            target.platform,
            device_kind=devices[0].device_kind,
            pool_multiple=multiple,
        )
    if job.op == "sharded_decode_step":
        return sharded_decode_step(
            job.implementation, target.platform, devices, pool_multiple=multiple
        )
    return op_program(
        job.op,
        job.implementation,
        CASES[job.case],
        job.dtype,
        platform=target.platform,
        device_kind=devices[0].device_kind,
        pool_multiple=multiple,
    )


def _kernels(target: Target, printed: Any, dump_folder: str) -> list[KernelUse]:
    if target.platform != "gpu":
        return []
    printed.seek(0)
    text = printed.read()
    printed.seek(0)
    printed.truncate()
    return kernels_in(dump_folder, text)


def main() -> None:
    target_name, dump_folder = sys.argv[1:]
    # compilers print where rows go, so rows get a descriptor of their own
    rows = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 1)
        for line in sys.stdin:
            job = Job(**json.loads(line))
            row = compile_job(job, TARGETS[target_name], printed, dump_folder)
            rows.write(json.dumps(row) + "\n")
            rows.flush()


if __name__ == "__main__":
    main()
