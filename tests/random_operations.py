"""Random operations under random settings; how they are drawn, and a long run of them.

`python -m tests.random_operations --operations=1000000 --seed=0` takes 15 to 30 minutes.
A run that fails says its seed, and `--seed=N --runs=1` repeats it.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from paxkv.allocators import ALLOCATORS
from paxkv.config import OUTCOMES
from paxkv.policies.admission import ADMISSION_POLICIES
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.pressure import PRESSURE_POLICIES, SWAPPING
from paxkv.policies.scheduling import SCHEDULING_POLICIES
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.request_options import Adapter, Media, RequestOptions, Retention
from paxkv.sampling_params import SamplingParams
from paxkv.tiers.host_tier import WRITE_POLICIES
from tests.serving import COMMON, MAX_CONTEXT, Choices, Serving

OPERATIONS_PER_RUN = 60
ADAPTER = Adapter(name="s", version="1")
MEDIA = tuple(
    Media(kind="image", digest=bytes([digest] * 32), start=2, end=5) for digest in range(2)
)
RETENTION = (
    (),
    (Retention(priority=80, duration_s=3.0),),
    (Retention(priority=0, end=4),),
)
SEVERAL: tuple[Mapping[str, Any], ...] = (
    *[{}] * 3,
    {"n": 2},
    {"n": 3},
    {"n": 1, "best_of": 3},
    {"n": 2, "use_beam_search": True},
    {"n": 2, "best_of": 3, "use_beam_search": True},
)
T = TypeVar("T")


class RandomChoices:
    """Those of a seed."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self.integer = self._random.randint

    def one_of(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


def serving(choices: Choices, allocator: str) -> Serving:
    """An empty engine with any settings."""
    block_size = choices.one_of([1, 2, 3, 8, 24])
    num_blocks = 1 + -(-choices.integer(1, 96) // block_size)
    settings = dict(
        allocator=allocator,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=choices.integer(1, 5),
        **budget(choices),
        mix_prefill=choices.one_of([True, True, False]),
        batching=choices.one_of([*["iteration"] * 3, "request"]),
        watermark=choices.one_of([0.0, 0.01, 0.3]),
        victim=choices.one_of(sorted(VICTIM_POLICIES)),
        admission=choices.one_of(sorted(ADMISSION_POLICIES)),
        scheduling=choices.one_of(sorted(SCHEDULING_POLICIES)),
        max_preemptions=choices.integer(0, 3),
        preempt_every=choices.one_of([0, 0, 1, 3]),
        shuffle_seed=choices.one_of([None, 1]),
        windows=choices.one_of([(None,), (None,), (None, 5), (3,), (None, None)]),
        listener=choices.one_of([None, lambda event: None]),
        poison=choices.one_of([False, True]),
        adapters=(ADAPTER,),
    )
    if allocator != "paged":
        return Serving(settings)
    host_blocks = choices.one_of([0, 1, 4, MAX_CONTEXT])
    swaps = host_blocks >= min(-(-MAX_CONTEXT // block_size), num_blocks - 1)
    pressures = [name for name in PRESSURE_POLICIES if swaps or name not in SWAPPING]
    pressure = choices.one_of(pressures)
    if pressure == "swap_or_recompute":
        settings.update(swap_s_per_block=1e-4, recompute_s_per_token=1e-4)
    settings.update(
        host_blocks=host_blocks,
        pressure=pressure,
        prefix_caching=choices.integer(0, 9) < 7,
        granularity=choices.one_of(["block", "token"]),
        eviction=choices.one_of(sorted(EVICTION_POLICIES)),
        deduplicate=choices.one_of([False, True]),
        host_write=choices.one_of(WRITE_POLICIES),
        hold_shared_prefixes=choices.one_of([False, True]),
        retain=choices.one_of([OUTCOMES, ("completed",), ()]),
        force_miss=choices.integer(0, 4) == 0,
    )
    return Serving(settings, has_disk=choices.one_of([False, True]))


def budget(choices: Choices) -> Mapping[str, Any]:
    """A budget that cuts prompts, or one that holds them."""
    chunked_prefill = choices.one_of([True, True, False])
    low, high = (1, 20) if chunked_prefill else (MAX_CONTEXT, 2 * MAX_CONTEXT)
    tokens = choices.integer(low, high)
    return {"chunked_prefill": chunked_prefill, "max_num_batched_tokens": tokens}


def options(choices: Choices) -> RequestOptions:
    return RequestOptions(
        priority=choices.integer(0, 2),
        tenant=choices.one_of(["", "a", "b"]),
        salt=choices.one_of([None, None, None, "s", b"s"]),
        adapter=choices.one_of([None, None, ADAPTER]),
        media=choices.one_of([(), (), MEDIA[:1], MEDIA[1:]]),
        position_offset=choices.one_of([0, 0, 0, 7]),
        retention=choices.one_of(RETENTION),
        reads_cache=choices.one_of([True, True, False]),
    )


def add(served: Serving, choices: Choices) -> None:
    own = [choices.integer(1, 252) for _ in range(choices.integer(0, 6))]
    sampling = SamplingParams(
        max_tokens=choices.integer(1, 30),
        ignore_eos=True,
        stop_token_ids=choices.one_of([(), (), tuple(range(0, 250, 5))]),
        **choices.one_of(SEVERAL),
    )
    prompt = (*COMMON[: choices.integer(0, MAX_CONTEXT + 1)], *own)
    served.add(prompt, sampling, options(choices))


def steps(served: Serving, choices: Choices) -> None:
    for _ in range(choices.integer(1, 4)):
        served.step()


def pin(served: Serving, choices: Choices) -> None:
    served.pin(choices.integer(0, MAX_CONTEXT), options(choices))


# Each with its weight in a random run.
OPERATIONS: Mapping[str, tuple[Callable[[Serving, Choices], None], int]] = {
    "add": (add, 25),
    "fork": (Serving.fork, 5),
    "steps": (steps, 50),
    "abort": (Serving.abort, 5),
    "abort_sample": (Serving.abort_sample, 3),
    "preempt": (Serving.preempt, 5),
    "pin": (pin, 2),
    "unpin": (lambda served, choices: served.unpin(), 2),
    "reset": (lambda served, choices: served.reset(), 1),
    "corrupt_disk": (Serving.corrupt_disk, 2),
}
_DRAWN = [name for name, (_, weight) in OPERATIONS.items() for _ in range(weight)]


def run(seed: int, num_operations: int = OPERATIONS_PER_RUN) -> Serving:
    """One engine from its first request to its last.

    Raises:
      AssertionError: something did not hold.
    """
    choices = RandomChoices(seed)
    others = [name for name in ALLOCATORS if name != "paged"]
    served = serving(choices, choices.one_of(["paged"] * 10 + others))
    for _ in range(num_operations):
        operate, _ = OPERATIONS[choices.one_of(_DRAWN)]
        operate(served, choices)
        served.check()
    served.finish()
    return served


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=50_000, help="in all runs")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--runs", type=int, help="instead of --operations")
    asked = parser.parse_args()
    num_runs = asked.runs or -(-asked.operations // OPERATIONS_PER_RUN)
    failed = []
    with tqdm(total=num_runs * OPERATIONS_PER_RUN, unit="op", mininterval=2) as progress:
        for seed in range(asked.seed, asked.seed + num_runs):
            try:
                run(seed)
            except Exception:
                failed.append(seed)
                tqdm.write(f"--seed={seed} --runs=1\n{traceback.format_exc()}")
            progress.update(OPERATIONS_PER_RUN)
    print(
        f"{num_runs:,} runs of {OPERATIONS_PER_RUN} operations from seed {asked.seed}: "
        f"{len(failed)} failed{': seeds ' if failed else ''}{failed or ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
