"""What happens to blocks and requests, as typed events that a listener may record."""

import enum
from collections.abc import Callable
from dataclasses import dataclass


class EventKind(enum.Enum):
    """The value is the name in a JSONL file; each says which fields it fills."""

    # of blocks
    ALLOCATE = "allocate"  # free blocks got an owner
    SHARE = "share"  # owned or cached blocks got one more owner (fork, hit)
    COPY = "copy"  # copy-on-write: blocks = (src, dst)
    RELEASE = "release"  # blocks lost one owner; others still own them
    FREE = "free"  # blocks lost their last owner and went to the free list
    RETAIN = "retain"  # blocks lost their last owner and stay cached
    CACHE = "cache"  # full blocks got a key: later requests can hit them
    EVICT = "evict"  # cached blocks lost their key; those without an owner are free now
    SWAP_OUT = "swap_out"  # blocks were copied to the host; slots = host slots
    SWAP_IN = "swap_in"  # blocks were filled from the host; slots = host slots
    SPILL = "spill"  # host slots were copied to disk
    LOAD = "load"  # blocks were filled from disk
    # of requests
    ADD = "add"
    ADMIT = "admit"  # num_tokens of its known tokens were found in the cache
    HIT = "hit"  # num_tokens of a prompt were found in the cache; once per request
    PREEMPT = "preempt"  # num_tokens lost (0: swapped out)
    FORK = "fork"  # detail: "request id/sample index" of the child
    FINISH = "finish"  # detail: the FinishReason's name
    # of steps
    STEP = "step"  # num_tokens computed; duration_s of the executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the log; fields that do not apply keep their defaults."""

    kind: EventKind
    step: int  # of the scheduler
    now_s: float  # when the step was planned (STEP: when it was committed)
    group: int = 0  # of the cache
    blocks: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    request_id: int | None = None
    sample_index: int = 0
    num_tokens: int = 0
    duration_s: float = 0.0
    detail: str = ""


Listener = Callable[[Event], None]
