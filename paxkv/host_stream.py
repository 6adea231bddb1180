"""Recorded operation streams: the same work for our host side and for a peer's.

A stream says which requests come in which step, all their tokens, and when each ends. So
both sides do the same work step by step, and each can be checked against the record.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paxkv.workloads.lengths import SHAREGPT_CONTEXT, scale_lengths, sharegpt_lengths

VOCAB_SIZE = 50_000
SPARE = 1.5  # blocks of a pool, over those of the longest requests at once
MOST_ADMITTED = 64  # requests a step, so that the first steps fit in a budget of tokens
NUM_PREFIXES = 8  # that half of the prompts begin with
PREFIX_TOKENS = (64, 512)  # of the shortest and the longest of these, at ShareGPT's context


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Admitted requests compute their prompt, the others their newest token; then each gets
    its next output, and those that have all of theirs end."""

    admitted: tuple[int, ...]
    finished: tuple[int, ...]  # ascending
    num_running: int  # in this step, the finished included


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Request i has the tokens `prompts[i]`, and then generates `outputs[i]`."""

    prompts: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    steps: tuple[RecordedStep, ...]
    num_warm: int  # steps before the first that counts
    num_rows: int  # most requests that run at once
    max_context: int

    @property
    def max_num_batched_tokens(self) -> int:
        """A budget that no step exceeds, so that no prompt is cut into chunks."""
        running = min(self.num_rows, MOST_ADMITTED)
        return running * self.max_context + self.num_rows

    def needed_blocks(self, block_size: int) -> int:
        """Of a pool that holds any of its running requests, and some that ended."""
        pairs = zip(self.prompts, self.outputs, strict=True)
        longest = sorted(len(prompt) + len(output) for prompt, output in pairs)
        longest = longest[-self.num_rows :]
        return int(SPARE * sum(-(-length // block_size) for length in longest)) + 2

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def record_serving(
    seed: int,
    num_running: int,
    num_steps: int,
    *,
    max_context: int = SHAREGPT_CONTEXT,
    requests_end: bool = True,
) -> Stream:
    """`num_running` requests of ShareGPT's lengths, for `num_steps` steps after warming up.

    With `requests_end`, each that ends is replaced in the next step, and those of the
    beginning are somewhere in their outputs, as if the service had run for long. Without,
    the requests stay the same, and all steps but the first ones are decode steps.
    """
    rng = np.random.default_rng(seed)
    num_warm = -(-num_running // MOST_ADMITTED) + 1
    draw = _Requests(rng, max_context, None if requests_end else num_warm + num_steps + 1)
    steps: list[RecordedStep] = []
    left: dict[int, int] = {}  # outputs to come
    for index in range(num_warm + num_steps):
        count = min(num_running - len(left), MOST_ADMITTED)
        admitted = [draw.request(started=index < num_warm) for _ in range(count)]
        left |= {request: len(draw.outputs[request]) for request in admitted}
        num_in_step = len(left)
        left = {request: count - 1 for request, count in left.items()}
        finished = sorted(request for request, count in left.items() if count == 0)
        left = {request: count for request, count in left.items() if count}
        steps.append(_step(admitted, finished, num_in_step))
    return Stream(
        prompts=tuple(draw.prompts),
        outputs=tuple(draw.outputs),
        steps=tuple(steps),
        num_warm=num_warm,
        num_rows=num_running,
        max_context=max_context,
    )


def record_lookups(seed: int, num_tokens: int, num_steps: int, *, repeated: bool) -> Stream:
    """One request a step, each with a prompt of `num_tokens` and one output.

    With `repeated` all prompts are cached: each of a few was served before.
    """
    rng = np.random.default_rng(seed)
    num_different = 32
    prompts = [_tokens(rng, num_tokens) for _ in range(num_different + num_steps)]
    if repeated:
        prompts = [prompts[i % num_different] for i in range(num_different + num_steps)]
    return Stream(
        prompts=tuple(prompts),
        outputs=tuple(_tokens(rng, 1) for _ in prompts),
        steps=tuple(_step([i], [i], 1) for i in range(len(prompts))),
        num_warm=num_different,
        num_rows=1,
        max_context=num_tokens + 2,
    )


def _step(admitted: Sequence[int], finished: Sequence[int], running: int) -> RecordedStep:
    return RecordedStep(
        admitted=tuple(admitted), finished=tuple(finished), num_running=running
    )


def _tokens(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(1, VOCAB_SIZE, count).tolist())


class _Requests:
    """Draws requests, numbered as they come."""

    def __init__(self, rng: np.random.Generator, max_context: int, num_outputs: int | None):
        """`num_outputs`: of all requests; None: ShareGPT's."""
        if num_outputs is not None and num_outputs >= max_context // 2:
            raise ValueError(
                f"{num_outputs=} steps of the same requests take more than half of "
                f"{max_context=}; record fewer steps."
            )
        self.prompts: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, ...]] = []
        self._rng = rng
        self._max_context = max_context
        self._num_outputs = num_outputs
        bounds = np.linspace(*PREFIX_TOKENS, NUM_PREFIXES).astype(np.int64)
        self._prefixes = [
            _tokens(rng, count) for count in scale_lengths(bounds, max_context).tolist()
        ]

    def request(self, *, started: bool) -> int:
        """The number of a new one; one that has `started` generated part of its outputs,
        which are then part of its prompt."""
        rng = self._rng
        inputs, outputs = sharegpt_lengths(rng, 1)
        num_own = int(scale_lengths(inputs, self._max_context)[0])
        num_outputs = int(scale_lengths(outputs, self._max_context)[0])
        if self._num_outputs is not None:
            num_outputs = self._num_outputs
            num_own = min(num_own, self._max_context - num_outputs - 1)
        elif started:
            done = int(rng.integers(num_outputs))
            num_own, num_outputs = num_own + done, num_outputs - done
        prefix = self._prefixes[rng.integers(NUM_PREFIXES)] if rng.random() < 0.5 else ()
        prefix = prefix[: self._max_context - num_own - num_outputs]
        self.prompts.append(prefix + _tokens(rng, num_own))
        self.outputs.append(_tokens(rng, num_outputs))
        return len(self.prompts) - 1
