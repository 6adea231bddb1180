"""What it costs on this device to swap a block, out and in again, and to compute a token
again: the two numbers that the pressure policy `swap_or_recompute` compares.

Each is the slope of a line through medians over several sizes. What a call or a step costs
besides is the line's start: a plan has its step anyway, and joins its moves in few calls.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from pallas_kernels.benchmarking import interleaved
from paxkv.building import build_engine, context_limit
from paxkv.config import EngineConfig
from paxkv.device_executor import empty_plan
from paxkv.models.cache_groups import group_windows
from paxkv.models.decoder import Decoder
from paxkv.moves import SwapIn, SwapOut
from paxkv.sequence_tables import SequenceTables
from paxkv.step_inputs import SMALLEST_DECODE_BUCKET, Buckets
from paxkv.types import Plan

MAX_BLOCKS = 2**16  # swapped at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds over sizes, fitted by least squares."""

    sizes: tuple[int, ...]
    median_s: tuple[float, ...]
    start_s: float  # of size 0
    slope_s: float  # per unit of size
    largest_residual: float  # distance from a median, as a share of the largest median


def fit_line(median_s: dict[int, float]) -> Line:
    """The line through the medians, by size.

    Raises:
      ArithmeticError: the times do not grow with the size, so there is no cost per unit.
    """
    sizes, seconds = np.array([*median_s]), np.array([*median_s.values()])
    slope, start = np.polyfit(sizes, seconds, 1)
    if slope <= 0:
        raise ArithmeticError(
            f"times {[f'{s:.2g} s' for s in seconds]} do not grow with sizes "
            f"{[*median_s]}: noise is larger; take larger sizes or more rounds."
        )
    residual = np.abs(start + slope * sizes - seconds).max() / seconds.max()
    return Line(
        sizes=tuple(median_s),
        median_s=tuple(seconds.tolist()),
        start_s=float(start),
        slope_s=float(slope),
        largest_residual=float(residual),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What was measured; the first two are fields of `SchedulerConfig`."""

    swap_s_per_block: float  # of any cache group, out and in again
    recompute_s_per_token: float
    bytes_per_block: int  # mean over the cache groups
    swap: Line  # over blocks
    recompute: Line  # over tokens

    @property
    def crossover_tokens_per_block(self) -> float:
        """Swapping pays where a block saves the computation of more tokens than these."""
        return self.swap_s_per_block / self.recompute_s_per_token


class RelocationBench:
    """An executor with a pool and a host store, and the calls that are timed on it."""

    def __init__(
        self,
        config: EngineConfig,
        decoder: Decoder,
        *,
        block_counts: Sequence[int],
        token_counts: Sequence[int],
    ):
        """Makes the pool; of `config`, sizes of pools and limits of steps are replaced.

        Args:
          block_counts: that are swapped at once, in each cache group.
          token_counts: of a prompt that one step computes. Each is a compiled shape of its
            own, so that no padding is timed.

        Raises:
          ValueError: fewer than two sizes, or a size that is out of range.
        """
        most_tokens = max(token_counts, default=0)
        context = context_limit(config, decoder.config.max_context)
        _check_counts("block_counts", block_counts, 1, MAX_BLOCKS)
        _check_counts("token_counts", token_counts, SMALLEST_DECODE_BUCKET + 1, context)
        self.block_counts, self.token_counts = tuple(block_counts), tuple(token_counts)
        self.num_groups = len(group_windows(decoder.config))
        block_size = config.cache.block_size
        in_table = -(-most_tokens // block_size)
        num_blocks = max(*block_counts, in_table) + 1
        cache = replace(
            config.cache,
            num_blocks=num_blocks,
            num_window_blocks=num_blocks,
            host_blocks=max(block_counts),
        )
        scheduler = replace(
            config.scheduler, max_num_seqs=1, max_num_batched_tokens=most_tokens
        )
        _, self.executor = build_engine(
            replace(config, cache=cache, scheduler=scheduler), decoder
        )
        self.executor.buckets = Buckets(
            decode_seqs=(SMALLEST_DECODE_BUCKET,), mixed_tokens=tuple(sorted(token_counts))
        )
        self._plan = _prefill_plan(self.num_groups, most_tokens, in_table, decoder)
        order = 1 + np.random.default_rng(0).permutation(num_blocks - 1)
        self._blocks: list[int] = order.tolist()  # as if they had been handed out

    @property
    def num_runs(self) -> int:
        """Calls of a round."""
        return len(self.block_counts) + len(self.token_counts)

    def swap(self, num_blocks: int) -> None:
        """So many blocks of each group go to the host, arrive, and come back."""
        executor = self.executor
        places = [
            (group, slot, block)
            for group in range(self.num_groups)
            for slot, block in enumerate(self._blocks[:num_blocks])
        ]
        out = [SwapOut(group=g, host_slot=slot, block=block) for g, slot, block in places]
        executor.cache = executor.transfers.run(executor.cache, out)
        executor.transfers.flush()
        back = [SwapIn(group=g, host_slot=slot, block=block) for g, slot, block in places]
        executor.cache = executor.transfers.run(executor.cache, back)
        jax.block_until_ready(executor.cache)

    def recompute(self, num_tokens: int) -> None:
        """A step computes so many tokens of a sequence, from its beginning."""
        lengths = np.array([num_tokens], np.int32)
        self.executor.run(replace(self._plan, lengths=lengths))

    def measure(
        self, rounds: int, on_run: Callable[[], object] = lambda: None
    ) -> Relocation:
        """Times all sizes in turns, after one run of each that compiles.

        Args:
          on_run: is called before each timed run.

        Raises:
          ArithmeticError: the times do not grow with the sizes.
        """
        swaps = {f"swap {n}": _call(self.swap, n) for n in self.block_counts}
        steps = {f"compute {n}": _call(self.recompute, n) for n in self.token_counts}
        seconds = interleaved(swaps | steps, rounds, on_run)
        median_s = {name: statistics.median(times) for name, times in seconds.items()}
        groups = self.num_groups
        swap = fit_line({n * groups: median_s[f"swap {n}"] for n in self.block_counts})
        recompute = fit_line({n: median_s[f"compute {n}"] for n in self.token_counts})
        return Relocation(
            swap_s_per_block=swap.slope_s,
            recompute_s_per_token=recompute.slope_s,
            bytes_per_block=self.executor.cache_plan.bytes_per_block // groups,
            swap=swap,
            recompute=recompute,
        )


def _check_counts(name: str, counts: Sequence[int], least: int, most: int) -> None:
    if len({*counts}) < 2 or min(counts) < least or max(counts) > most:
        raise ValueError(
            f"{name}={[*counts]} must be two or more different sizes in "
            f"[{least}, {most:,}], since a line goes through two; give such sizes."
        )


def _call(function: Callable[[int], None], size: int) -> Callable[[], None]:
    return lambda: function(size)


def _prefill_plan(
    num_groups: int, most_tokens: int, in_table: int, decoder: Decoder
) -> Plan:
    """Of one sequence that begins; its length is left to fill in."""
    tables = SequenceTables(
        max_num_seqs=1,
        max_context=most_tokens,
        blocks_per_sequence=(in_table,) * num_groups,
    )
    row = tables.acquire()
    prompt = np.random.default_rng(1).integers(decoder.config.vocab_size, size=most_tokens)
    tables.write_known(row, prompt.astype(np.int32), [])
    for group in range(num_groups):
        tables.append(group, row, range(1, in_table + 1))
    return replace(
        empty_plan(tables),
        rows=np.array([row], np.int32),
        starts=np.zeros(1, np.int32),
        lengths=np.zeros(1, np.int32),
        samples=np.zeros(1, bool),
    )
