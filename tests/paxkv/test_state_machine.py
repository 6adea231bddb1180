"""Any order of adding, stepping, aborting and preempting keeps every invariant."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paxkv.allocators import ALLOCATORS
from paxkv.invariants import check_invariants
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine

MAX_CONTEXT = 24
MOST_STEPS = 3_000  # any workload drawn here ends far earlier


class Serving(RuleBasedStateMachine):
    allocator: str

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 8, 24]),
        pool_tokens=st.integers(1, 96),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 20),
        watermark=st.sampled_from([0.0, 0.01, 0.3]),
        victim=st.sampled_from(sorted(VICTIM_POLICIES)),
        max_preemptions=st.integers(0, 3),
        preempt_every=st.sampled_from([0, 0, 1, 3]),
        shuffle_seed=st.sampled_from([None, 1]),
    )
    def start(self, block_size, pool_tokens, **settings):
        self.engine = make_engine(
            allocator=self.allocator,
            block_size=block_size,
            num_blocks=1 + -(-pool_tokens // block_size),
            max_context=MAX_CONTEXT,
            **settings,
        )
        self.scheduler = self.engine.scheduler
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.finishes: dict[int, FinishReason] = {}

    @rule(
        prompt=st.lists(st.integers(1, 260), max_size=MAX_CONTEXT + 1),
        max_tokens=st.integers(1, 30),
        stop_token_ids=st.sampled_from([(), (), tuple(range(0, 250, 5))]),
    )
    def add(self, prompt, max_tokens, stop_token_ids):
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids
        )
        request_id = self.engine.add(prompt, sampling)
        self.prompts[request_id] = tuple(prompt)
        self.tokens[request_id] = []

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            oldest = next(iter(self.scheduler.running.requests), None)
            outcome = self.engine.step()
            for update in outcome.updates:
                self._take(update)
            if outcome.metrics is None:
                continue
            (partition,) = outcome.metrics.partitions
            usable = self.scheduler.allocator.num_blocks - 1
            assert partition.total == usable * self.scheduler.allocator.block_size
            if oldest is not None and not self.scheduler.config.preempt_every:
                assert oldest not in self.scheduler.waiting, "the oldest was held up"

    def _take(self, update):
        assert update.request_id not in self.finishes, "news of a request that ended"
        self.tokens[update.request_id] += update.new_token_ids
        if update.finish is not None:
            self.finishes[update.request_id] = update.finish.reason
            assert update.metrics.num_output_tokens == len(self.tokens[update.request_id])

    @rule(data=st.data())
    def abort(self, data):
        if self.prompts:
            request_id = data.draw(st.sampled_from(sorted(self.prompts)))
            had_ended = request_id in self.scheduler.ended
            assert self.engine.abort(request_id) is not had_ended

    @rule(data=st.data())
    def preempt(self, data):
        """What a policy could ask for at the worst moment."""
        running = self.scheduler.running.requests
        if running:
            self.scheduler._preempt(data.draw(st.sampled_from(running)))

    @invariant()
    def holds(self):
        if hasattr(self, "scheduler"):
            check_invariants(self.scheduler)

    def teardown(self):
        """Whatever happened, the rest can be served to its end."""
        if not hasattr(self, "engine"):
            return
        for _ in range(MOST_STEPS):
            if not self.engine.has_unfinished:
                break
            self.step(1)
        assert set(self.finishes) == set(self.prompts), "a request vanished"
        for request_id, tokens in self.tokens.items():
            expected = fake_completion(self.prompts[request_id], len(tokens))
            assert tuple(tokens) == expected
        allocator = self.scheduler.allocator
        assert allocator.num_free == allocator.num_blocks - 1


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_serving_keeps_every_invariant(allocator):
    machine = type("Serving", (Serving,), {"allocator": allocator})
    machine.TestCase.settings = settings(
        deadline=None, max_examples=30, stateful_step_count=30
    )
    machine.TestCase("runTest").runTest()
