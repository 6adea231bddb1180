"""Host values that travel between caller, scheduler and executor. No jax here."""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from paxkv.beam import BeamSearch
from paxkv.cache_keys import token_bytes
from paxkv.moves import Move
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.sequence_tables import SequenceTables

MAX_CANDIDATES = 256  # likeliest tokens of a position that an executor tells


class FinishReason(enum.Enum):
    """Why a request ended; the value is the sentence its user reads."""

    STOP_TOKEN = "The model produced a stop token."
    STOP_STRING = "The text reached a stop string."
    LENGTH = "max_tokens were generated."
    ABORTED = "The caller cancelled the request."
    REJECTED_EMPTY = "The prompt is empty."
    REJECTED_BAD_TOKEN = (
        "The prompt or the sampling parameters name a token id the model lacks."
    )
    REJECTED_TOO_LONG = "The request is longer than the model's context."
    REJECTED_NEVER_FITS = "The KV pool can never serve the request."
    REJECTED_NO_ADAPTER = "The request names an adapter that is not loaded."
    REJECTED_POOL_FULL = "The KV pool was full when the request came."
    DROPPED_POOL_FULL = "The KV pool ran full and the request was given up."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A `FinishReason` and the same in words, with the request's own numbers."""

    reason: FinishReason
    message: str


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """What the caller knows as one request: one sequence, or several that were forked
    from it (samples, beams). Mutable; only the scheduler writes it."""

    request_id: int
    num_sequences: int  # that it becomes: 1, best_of, or the width of the beam
    sequences: list["Request"] = field(default_factory=list)  # unfinished, oldest first
    is_forked: bool = False
    beams: BeamSearch | None = None
    # best_of and beams: what is told only when all is known
    withheld: list["RequestUpdate"] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A sequence and its progress: a request, or one of its samples or beams. Tokens are
    prompt + output; how many of them are computed is in `SequenceTables`. Mutable; only
    the scheduler writes it."""

    request_id: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_s: float
    options: RequestOptions = field(default_factory=RequestOptions)
    group: Group = field(default_factory=lambda: NO_GROUP)
    sample_index: int = 0
    # smaller goes first and is protected: (priority, order of adding, sample index)
    rank: tuple[int, int, int] = (0, 0, 0)
    output_ids: list[int] = field(default_factory=list)
    # beams: the best (token id, log-probability) that the last step offered
    candidates: tuple[tuple[int, float], ...] | None = None
    cumulative_logprob: float = 0.0  # where the scheduler needs it
    prompt_bytes: bytes = b""  # `token_bytes` of the prompt, made when it is queued
    num_prompt_logprobs: int = 0  # prompt positions whose log-probabilities were told
    num_cached_tokens: int | None = None  # found at its first admission
    num_preemptions: int = 0
    num_lost_tokens: int = 0  # computed before a preemption, and not yet again
    num_swaps: int = 0
    num_recomputed_tokens: int = 0
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)  # one per output token

    @property
    def num_tokens(self) -> int:
        """Known ones: prompt + output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def known_bytes(self) -> bytes:
        """Known tokens, as keys of the prefix cache have them."""
        if not self.output_ids:
            return self.prompt_bytes
        return self.prompt_bytes + token_bytes(self.output_ids)

    @property
    def prompt_array(self) -> Int32[np.ndarray, "num_prompt"]:
        return np.frombuffer(self.prompt_bytes, np.int32)

    @property
    def expected_tokens(self) -> int:
        """Prompt + max_tokens: exact with ignore_eos, an upper bound without."""
        return len(self.prompt_ids) + self.sampling.max_tokens

    @property
    def reads_cache(self) -> bool:
        """Log-probabilities of a prompt need all of it computed."""
        return self.options.reads_cache and self.sampling.prompt_logprobs is None


NO_GROUP = Group(request_id=-1, num_sequences=0)  # of a request that was not added yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPartition:
    """Positions of the N - 1 usable blocks of a group, each in exactly one class."""

    token_states: int  # K/V computed (after this step), owned by running sequences
    tail: int  # rest of a sequence's last block
    reserved: int  # held, not yet computed, will be used
    internal: int  # held, never to be used
    rounding: int  # owned by a buddy region, in no table
    cached: int  # unreferenced, reusable by a prefix hit
    free: int
    # free positions that cannot serve the head of the queue: no run is long enough
    unusable_free: int
    # positions of the sequences' blocks as if none were shared: one held by several counts
    # for each of them
    logical: int = 0

    @property
    def total(self) -> int:
        return (
            self.token_states
            + self.tail
            + self.reserved
            + self.internal
            + self.rounding
            + self.cached
            + self.free
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStart:
    """A row of the tables now belongs to this request: load its sampling settings."""

    row: int
    request_id: int
    num_prompt_tokens: int
    sampling: SamplingParams
    sample_index: int = 0
    num_top: int | None = None  # alternatives per token to tell; None: no log-probabilities
    options: RequestOptions = field(default_factory=RequestOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step: slice i computes tokens [starts[i], starts[i] + lengths[i]) of the
    sequence in table row rows[i]. Length 1 is a decode or a one-token chunk.

    Arrays are int32 [n] unless said; `tables` is the live host array set that the
    executor packs from (it must not change before `run` returns).
    """

    step: int
    now_s: float
    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    samples: np.ndarray  # bool [n]: the slice ends at the last known token
    requests: tuple[Request, ...]  # of each slice; for commit, executors do not read it
    started: tuple[RowStart, ...]
    moves: tuple[Move, ...]  # carried out one after the other, before the step
    tables: SequenceTables
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_preempted: int
    partitions: tuple[PoolPartition, ...]  # per cache group, as of the end of the step
    num_duplicate_blocks: int = 0  # owned, with the content of another cached block
    head_refused: bool = False  # the first in the queue found no room

    @property
    def is_empty(self) -> bool:
        """There is nothing for an executor to do."""
        return not (self.requests or self.moves or self.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the chosen token and of the top n."""

    token_id: int
    logprob: float
    rank: int  # 1: the most likely
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What an executor returns for a plan of n slices."""

    tokens: np.ndarray  # int32 [n]; meaningless where the slice does not sample
    duration_s: float  # pack, transfer, run and fetch; virtual when simulated
    logprobs: tuple[TokenLogprobs | None, ...] = ()  # per slice; () if nobody asked
    # per slice: of prompt tokens [start + 1, start + length], as far as they are prompt
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times (s, of the engine's clock) and counts of a request that ended."""

    request_id: int
    arrival_s: float
    first_scheduled_s: float | None
    token_times_s: tuple[float, ...]
    finish_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_recomputed_tokens: int
    reason: FinishReason
    sample_index: int = 0
    num_cached_tokens: int = 0  # of the prompt, found at the first admission
    num_swaps: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step: counts, times and the state of every position of the pool."""

    step: int
    now_s: float  # when planning began
    duration_s: float  # the executor's
    host_s: float  # planning and committing
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_preempted: int
    partitions: tuple[PoolPartition, ...]
    table_bytes: int
    num_duplicate_blocks: int = 0
    num_copied_blocks: int = 0  # copy-on-write
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0


class RequestUpdate(NamedTuple):
    """News of one request, or of one of its samples, after a step."""

    request_id: int
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of this step's chunk
    finish: Finish | None = None
    metrics: RequestMetrics | None = None  # with `finish`
    sample_index: int = 0
    score: float | None = None  # with `finish` of best_of and beams: what they rank by
    ends_request: bool = False  # no sample of the request is left


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step, and what ended since the one before, tells a caller."""

    updates: tuple[RequestUpdate, ...]
    metrics: StepMetrics | None  # None: there was nothing to run
