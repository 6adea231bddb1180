from itertools import cycle

import pytest

from paxkv.simulation.measuring import (
    FULL_STEPS,
    LEAST_ROUNDS,
    Load,
    grid_loads,
    make_bench,
    measure,
    output_tokens,
    run_load,
)
from tests.fakes import FakeClock, make_engine

LOAD = Load(name="fit", block_size=4, batch=6, context=10)
LIMITS = dict(max_num_seqs=8, max_num_batched_tokens=16, num_blocks=100)


def bench_of(**settings):
    engine = make_engine(FakeClock(), block_size=4, **LIMITS | settings)
    return make_bench(engine, 4, (None,))


def test_the_whole_batch_decodes_together():
    bench, count = bench_of(), output_tokens(LOAD, 16, 64)
    assert count == 4 + FULL_STEPS  # 60 tokens take 4 steps of 16
    records = run_load(bench, LOAD, count)
    full = [r for r in records if r.work.num_decode_tokens == 6]
    assert len(full) >= FULL_STEPS - 1  # decodes, too, take room from the prompts
    assert sum(r.work.num_prefill_tokens for r in records) == 60
    # the first token of each comes with its prefill
    assert sum(r.work.num_decode_tokens for r in records) == 6 * (count - 1)
    assert not bench.engine.has_unfinished


def test_outputs_end_with_the_context():
    assert output_tokens(LOAD, 16, 15) == 5


def test_requests_that_do_not_fit_are_told():
    with pytest.raises(
        ValueError, match="gave .* tokens, not 6000: its requests do not fit"
    ):
        run_load(bench_of(), LOAD, 1000)


class Slowing:
    """An executor whose steps take what `factors` say, one after the other."""

    def __init__(self, executor, factors):
        self.executor, self.factors = executor, factors

    def run(self, plan):
        result = self.executor.run(plan)
        object.__setattr__(result, "duration_s", next(self.factors))
        return result


def test_rounds_are_joined_by_their_quantile():
    engine = make_engine(FakeClock(), block_size=4, **LIMITS)
    bench = make_bench(engine, 4, (None,))
    num_steps = len(run_load(bench, LOAD, 12))
    factors = [1.0] * num_steps + [2.0] * num_steps + [9.0] * num_steps
    bench.recorder.executor = Slowing(bench.recorder.executor, cycle(factors))
    calls = []
    median = measure(
        {LOAD.bench: bench}, [LOAD], [12], 3, 0.5, 60.0, lambda: calls.append(1)
    )
    assert [r.duration_s for r in median.sets["fit"]] == [2.0] * num_steps
    assert median.disturbance == 0 and len(calls) == 3
    least = measure({LOAD.bench: bench}, [LOAD], [12], 3, 0.0)
    assert [r.duration_s for r in least.sets["fit"]] == [1.0] * num_steps
    assert least.disturbance == 1.0
    few = measure({LOAD.bench: bench}, [LOAD], [12], 9, 0.5, 0.0)
    assert (least.num_rounds, few.num_rounds) == (3, LEAST_ROUNDS)


def test_rounds_that_differ_are_refused():
    bench = bench_of(prefix_caching=True)  # so that the second round computes less
    with pytest.raises(RuntimeError, match="took different steps"):
        measure({LOAD.bench: bench}, [LOAD], [12], 2, 0.5)


def test_moves_happen():
    load = Load(name="fit", block_size=4, batch=3, context=10, has_moves=True)
    settings = dict(pressure="preempt_swap", preempt_every=3, host_blocks=100)
    bench = bench_of(**settings, max_preemptions=1000)
    works = [record.work for record in run_load(bench, load, 12)]
    assert sum(work.num_swapped_out_blocks for work in works) > 0
    assert sum(work.num_swapped_in_blocks for work in works) > 0
    assert sum(work.num_copied_blocks for work in works) > 0


FIT = dict(block_sizes=(8, 32), batches=(1, 4), contexts=(10, 100))
HELD_OUT = dict(block_sizes=(16,), batches=(2,), contexts=(50,))


def test_held_out_sets_leave_the_grid_on_one_axis_or_all():
    loads = grid_loads(FIT, HELD_OUT, 400)
    found = {}
    for load in loads:
        found.setdefault(load.name, set()).add((load.block_size, load.batch, load.context))
    assert len(found["fit"]) == 8
    assert found["block sizes"] == {(16, b, c) for b in (1, 4) for c in (10, 100)}
    assert found["contexts"] == {(s, b, 50) for s in (8, 32) for b in (1, 4)}
    assert found["batches"] == {(s, 2, c) for s in (8, 32) for c in (10, 100)}
    assert found["all three"] == {(16, 2, 50)}
    assert max(load.batch * load.context for load in grid_loads(FIT, HELD_OUT, 399)) == 200


def test_overlapping_or_empty_sets_are_refused():
    with pytest.raises(ValueError, match=r"batches=\[4\] are fitted and held out"):
        grid_loads(FIT, HELD_OUT | {"batches": (4, 5)}, 400)
    with pytest.raises(ValueError, match=r"max_prompt_tokens=60 leaves no load in \['all"):
        grid_loads(FIT, HELD_OUT, 60)
