"""Any order of adding, forking, pinning, stepping, aborting and preempting, under every
policy, keeps every invariant and gives the same tokens.

Hypothesis shrinks what fails here; `python -m tests.random_operations` tries far more of
the same operations in the same time.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from paxkv.allocators import ALLOCATORS
from tests import random_operations
from tests.random_operations import OPERATIONS, run

OPERATIONS_PER_RUN = 30
DATA = st.data()


class DrawnChoices:
    """Those of hypothesis."""

    def __init__(self, data):
        self._draw = data.draw

    def integer(self, low, high):
        return self._draw(st.integers(low, high))

    def one_of(self, options):
        return self._draw(st.sampled_from(options))


class Machine(RuleBasedStateMachine):
    allocator: str
    served = None

    @initialize(data=DATA)
    def start(self, data):
        self.served = random_operations.serving(DrawnChoices(data), self.allocator)

    def teardown(self):
        if self.served is not None:
            self.served.finish()


def _rule(operate):
    def method(self, data):
        operate(self.served, DrawnChoices(data))
        self.served.check()

    return rule(data=DATA)(method)


def machine(allocator):
    """With a rule for each operation that the allocator knows."""
    paged_only = {"pin", "unpin", "reset", "corrupt_disk"}
    rules = {
        name: _rule(operate)
        for name, (operate, _) in OPERATIONS.items()
        if allocator == "paged" or name not in paged_only
    }
    return type("Serving", (Machine,), {"allocator": allocator, **rules})


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_serving_keeps_every_invariant(allocator, request):
    operations = request.config.getoption("--operations")
    share = operations * 7 // 10 if allocator == "paged" else operations // 10
    case = machine(allocator).TestCase
    case.settings = settings(
        deadline=None,
        max_examples=max(share // OPERATIONS_PER_RUN, 1),
        stateful_step_count=OPERATIONS_PER_RUN,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()


# Some of these found a fault once.
@pytest.mark.parametrize("seed", [32, 2927, 6348, 6968, 8724, 102_438, 1_000_000])
def test_a_random_run_repeats_by_its_seed(seed):
    assert run(seed).tokens == run(seed).tokens
