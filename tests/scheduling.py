"""One step of a scheduler at a time, without an executor."""

import numpy as np

from paxkv.types import StepResult

TOKEN = 7  # what every slice samples unless a test says otherwise


def slices(plan):
    """{request id: (start, length)} of a plan."""
    ids = [request.request_id for request in plan.requests]
    pairs = zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True)
    return dict(zip(ids, pairs, strict=True))


def commit(scheduler, plan, token=TOKEN, **result):
    tokens = np.full(len(plan.rows), token, np.int32)
    return scheduler.commit(
        plan, StepResult(tokens=tokens, duration_s=0.0, **result), now_s=plan.now_s
    )


def step(scheduler, token=TOKEN, now_s=0.0):
    plan = scheduler.plan(now_s)
    commit(scheduler, plan, token)
    return plan


def add(scheduler, *requests):
    for request in requests:
        assert scheduler.add(request) == []
