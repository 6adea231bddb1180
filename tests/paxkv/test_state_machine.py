"""Any order of adding, forking, pinning, stepping, aborting and preempting, under every
policy, keeps every invariant and gives the same tokens.

`python -m pytest tests/paxkv/test_state_machine.py --operations=1000000` runs longer.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paxkv.allocators import ALLOCATORS
from paxkv.beam import BeamParams
from paxkv.invariants import check_invariants
from paxkv.policies.admission import ADMISSION_POLICIES
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.pressure import PRESSURE_POLICIES
from paxkv.policies.scheduling import SCHEDULING_POLICIES
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.request_options import Adapter, RequestOptions, Retention
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import VOCAB_SIZE, fake_beams, fake_completion, make_engine

MAX_CONTEXT = 24
MOST_STEPS = 3_000  # any workload drawn here ends far earlier
OPERATIONS_PER_RUN = 30
COMMON = tuple(range(1, MAX_CONTEXT + 2))  # prompts begin with some of it

ADAPTER = Adapter(name="s", version="1")
OPTIONS = st.builds(
    RequestOptions,
    priority=st.integers(0, 2),
    tenant=st.sampled_from(["", "a", "b"]),
    salt=st.sampled_from([None, None, None, "s", b"s"]),
    adapter=st.sampled_from([None, None, ADAPTER]),
    retention=st.sampled_from(
        [(), (Retention(priority=80, duration_s=3.0),), (Retention(priority=0, end=4),)]
    ),
    reads_cache=st.sampled_from([True, True, False]),
)
SEVERAL = st.sampled_from(
    [{}, {}, {}, {"n": 2}, {"n": 3}, {"n": 1, "best_of": 3}]
    + [{"n": 2, "best_of": 3, "use_beam_search": True}, {"n": 2, "use_beam_search": True}]
)


class Serving(RuleBasedStateMachine):
    allocator: str

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 8, 24]),
        pool_tokens=st.integers(1, 96),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 20),
        watermark=st.sampled_from([0.0, 0.01, 0.3]),
        victim=st.sampled_from(sorted(VICTIM_POLICIES)),
        admission=st.sampled_from(sorted(ADMISSION_POLICIES)),
        scheduling=st.sampled_from(sorted(SCHEDULING_POLICIES)),
        max_preemptions=st.integers(0, 3),
        preempt_every=st.sampled_from([0, 0, 1, 3]),
        shuffle_seed=st.sampled_from([None, 1]),
        windows=st.sampled_from([(None,), (None,), (None, 5), (3,), (None, None)]),
        data=st.data(),
    )
    def start(self, block_size, pool_tokens, data, **settings):
        num_blocks = 1 + -(-pool_tokens // block_size)
        paged = self._paged(data, num_blocks) if self.allocator == "paged" else {}
        self.engine = make_engine(
            allocator=self.allocator,
            block_size=block_size,
            num_blocks=num_blocks,
            max_context=MAX_CONTEXT,
            adapters=(ADAPTER,),
            **settings,
            **paged,
        )
        self.scheduler = self.engine.scheduler
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.sampling: dict[int, SamplingParams] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finishes: dict[tuple[int, int], FinishReason] = {}
        self.ended: set[int] = set()
        self.pinned: list[tuple[tuple[int, ...], RequestOptions]] = []

    def _paged(self, data, num_blocks: int):
        """Settings that only the paged allocator has."""
        host_blocks = data.draw(st.sampled_from([0, 1, 4, MAX_CONTEXT]))
        swaps = host_blocks >= min(MAX_CONTEXT, num_blocks - 1)
        pressures = [p for p in PRESSURE_POLICIES if swaps or "swap" not in p]
        return dict(
            host_blocks=host_blocks,
            pressure=data.draw(st.sampled_from(pressures)),
            prefix_caching=data.draw(st.booleans()),
            granularity=data.draw(st.sampled_from(["block", "token"])),
            eviction=data.draw(st.sampled_from(sorted(EVICTION_POLICIES))),
            deduplicate=data.draw(st.booleans()),
            host_write=data.draw(
                st.sampled_from(["write_back", "write_through", "write_through_selective"])
            ),
            hold_shared_prefixes=data.draw(st.booleans()),
            retain=data.draw(
                st.sampled_from(
                    [("completed", "cancelled", "failed", "preempted"), ("completed",), ()]
                )
            ),
            force_miss=data.draw(st.sampled_from([False, False, False, True])),
            poison=data.draw(st.booleans()),
        )

    @rule(
        num_common=st.integers(0, MAX_CONTEXT + 1),
        own=st.lists(st.integers(1, 260), max_size=6),
        max_tokens=st.integers(1, 30),
        stop_token_ids=st.sampled_from([(), (), tuple(range(0, 250, 5))]),
        several=SEVERAL,
        options=OPTIONS,
    )
    def add(self, num_common, own, max_tokens, stop_token_ids, several, options):
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids, **several
        )
        prompt = (*COMMON[:num_common], *own)
        request_id = self.engine.add(prompt, sampling, options=options)
        self.prompts[request_id] = prompt
        self.sampling[request_id] = sampling

    @rule(data=st.data())
    def fork(self, data):
        """A child goes on as its parent does."""
        plain = [
            request_id
            for request_id, sampling in self.sampling.items()
            if request_id not in self.ended
            and request_id not in self.scheduler.ended
            and sampling.num_sequences == 1
        ]
        if plain:
            parent = data.draw(st.sampled_from(plain))
            child = self.engine.fork(parent)
            self.prompts[child] = self.prompts[parent]
            self.sampling[child] = self.sampling[parent]

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            oldest = next(iter(self.scheduler.running.requests), None)
            outcome = self.engine.step()
            for update in outcome.updates:
                self._take(update)
            if outcome.metrics is None:
                continue
            for group, partition in enumerate(outcome.metrics.partitions):
                usable = self.scheduler.allocator.usage(group).num_blocks - 1
                assert partition.total == usable * self.scheduler.allocator.block_size
            if oldest is not None and not self.scheduler.config.preempt_every:
                assert oldest not in self.scheduler.waiting, "the oldest was held up"

    def _take(self, update):
        sample = update.request_id, update.sample_index
        assert sample not in self.finishes, "news of a sample that ended"
        assert update.request_id not in self.ended, "news of a request that ended"
        self.tokens.setdefault(sample, []).extend(update.new_token_ids)
        if update.finish is not None:
            self.finishes[sample] = update.finish.reason
            assert update.metrics.num_output_tokens == len(self.tokens[sample])
        if update.ends_request:
            self.ended.add(update.request_id)

    @rule(data=st.data())
    def abort(self, data):
        if self.prompts:
            request_id = data.draw(st.sampled_from(sorted(self.prompts)))
            had_ended = request_id in self.scheduler.ended
            assert self.engine.abort(request_id) is not had_ended

    @rule(data=st.data())
    def abort_sample(self, data):
        if self.prompts:
            request_id = data.draw(st.sampled_from(sorted(self.prompts)))
            if not self.sampling[request_id].use_beam_search:
                self.engine.abort(request_id, sample_index=data.draw(st.integers(0, 2)))

    @rule(data=st.data())
    def preempt(self, data):
        """What a policy could ask for at the worst moment."""
        candidates = self.scheduler.running.candidates()
        if candidates:
            victim = data.draw(st.sampled_from(candidates))
            swaps = data.draw(st.booleans())
            self.scheduler.preempting._give_way(victim, swaps=swaps)

    @rule(num_tokens=st.integers(0, MAX_CONTEXT), options=OPTIONS)
    def pin(self, num_tokens, options):
        if self.scheduler.allocator.prefixes is not None and not self.pinned:
            self.engine.pin_prefix(COMMON[:num_tokens], options)
            self.pinned.append((COMMON[:num_tokens], options))

    @rule()
    def unpin(self):
        if self.pinned:
            self.engine.unpin_prefix(*self.pinned.pop())

    @rule()
    def reset(self):
        if self.scheduler.allocator.prefixes is not None:
            self.engine.reset_prefix_cache()

    @invariant()
    def holds(self):
        if hasattr(self, "scheduler"):
            check_invariants(self.scheduler)

    def teardown(self):
        """Whatever happened, the rest can be served to its end."""
        if not hasattr(self, "engine"):
            return
        self.unpin()
        for _ in range(MOST_STEPS):
            if not self.engine.has_unfinished:
                break
            self.step(1)
        assert self.ended == set(self.prompts), "a request vanished"
        for request_id, sampling in self.sampling.items():
            self._check_tokens(request_id, sampling)
        check_invariants(self.scheduler)

    def _check_tokens(self, request_id, sampling):
        samples = {s: ids for (r, s), ids in self.tokens.items() if r == request_id}
        prompt = self.prompts[request_id]
        if sampling.use_beam_search:
            if self.finishes.get((request_id, 0)) in (
                FinishReason.LENGTH,
                FinishReason.STOP_TOKEN,
            ):
                expected = fake_beams(prompt, beam_params(sampling, prompt))
                assert [tuple(samples[i]) for i in sorted(samples)] == [
                    found.token_ids for found in expected
                ]
            return
        for sample_index, tokens in samples.items():
            drawn = range(sampling.num_sequences)
            if sampling.num_sequences == sampling.n:
                drawn = (sample_index,)
            assert tuple(tokens) in [
                fake_completion(prompt, len(tokens), index) for index in drawn
            ]


def beam_params(sampling: SamplingParams, prompt: tuple[int, ...]) -> BeamParams:
    return BeamParams(
        width=sampling.num_sequences,
        num_return=sampling.n,
        max_tokens=min(sampling.max_tokens, MAX_CONTEXT - len(prompt)),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        stop_token_ids=frozenset(t for t in sampling.stop_token_ids if t < VOCAB_SIZE),
    )


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_serving_keeps_every_invariant(allocator, request):
    operations = request.config.getoption("--operations")
    share = operations * 7 // 10 if allocator == "paged" else operations // 10
    machine = type("Serving", (Serving,), {"allocator": allocator})
    machine.TestCase.settings = settings(
        deadline=None,
        max_examples=max(share // OPERATIONS_PER_RUN, 1),
        stateful_step_count=OPERATIONS_PER_RUN,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase("runTest").runTest()
