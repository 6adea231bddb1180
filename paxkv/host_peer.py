"""vLLM's host side as a child process, and streams timed in turns with it."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.analysis.host_speed import OURS, PEER, medians_us
from paxkv.host_bench import (
    ManagerReplay,
    Replay,
    Seconds,
    StepReplay,
    in_turns,
    settle,
)
from paxkv.host_stream import Stream
from paxkv.types import Plan


class Peer:
    """vLLM's host side in a process of its own, which waits while others take turns."""

    def __init__(self, place: str, script: Path):
        """`place`: an interpreter and vLLM's source, joined by a colon.

        Raises:
          ValueError: `place` is no such pair.
          OSError, ChildProcessError: it does not start.
        """
        python, colon, source = place.partition(":")
        if not colon or not Path(python).is_file() or not Path(source, "vllm").is_dir():
            raise ValueError(
                f"{place!r} must be PYTHON:SOURCE, an interpreter and a folder that holds "
                "vllm/; unpack the source distribution of vllm-tpu, and give an "
                "interpreter with torch and what vLLM imports."
            )
        # its model registry starts a process that must find vllm as well
        env = os.environ | {"PYTHONPATH": source, "HF_HUB_OFFLINE": "1"}
        env |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process: Any = subprocess.Popen(
            [python, str(script)], env=env, text=True, **pipes
        )
        self.version: str = self._answer()["vllm"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # then it gives no answer either
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise ChildProcessError("the peer ended; its message is above.")
        return json.loads(line)

    def close(self) -> None:
        """No more requests, so it ends."""
        if not self._process.stdin.closed:
            self._process.communicate()


class PeerReplay:
    """The same stream, replayed by the peer; what it held is dropped by `close`."""

    def __init__(self, peer: Peer, stream: Stream, what: str, **settings: int | str):
        """`what`: "steps" or "manager"; `settings`: num_blocks, block_size, clock, gc."""
        self._peer = peer
        self._name = f"{what} {id(self)}"
        limits = {"max_num_batched_tokens": stream.max_num_batched_tokens}
        peer.ask(
            {"op": "open", "name": self._name, "what": what}
            | {"recording": stream.to_json(), **limits, **settings}
        )

    def advance(self, num_steps: int) -> tuple[Seconds, list[list[int]]]:
        answer = self._peer.ask({"op": "advance", "name": self._name, "count": num_steps})
        return answer["seconds"], answer["finished"]

    def close(self) -> None:
        self._peer.ask({"op": "close", "name": self._name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How streams are timed, on both sides."""

    block_size: int
    batch: int  # steps of one turn
    gc: str
    clock: str


def time_stream(
    stream: Stream,
    timing: Timing,
    pack: Callable[[Plan], object] | None,
    peer: Peer | None,
    progress: Callable[[int], object],
    pools: Sequence[int] = (),
) -> dict[str, Any]:
    """Our side on pools of so many blocks, and the peer on the first, in turns.

    Args:
      pack: packs plans of whole steps; None: the manager alone is timed.
      pools: none: one that the stream needs.

    Returns:
      A row with medians in µs per operation and all seconds, by side. Our sides on
      further pools are named after their blocks.
    """
    pools = list(pools) or [stream.needed_blocks(timing.block_size)]
    sizes = dict(block_size=timing.block_size, clock=timing.clock)
    replays: dict[str, Replay] = {}
    for name, pool in zip([OURS, *map(str, pools[1:])], pools, strict=True):
        if pack is None:
            replays[name] = ManagerReplay(stream, num_blocks=pool, **sizes)
        else:
            replays[name] = StepReplay(stream, pack, num_blocks=pool, **sizes)
    theirs = None
    if peer is not None:
        what = "manager" if pack is None else "steps"
        settings = sizes | dict(gc=timing.gc, num_blocks=pools[0])
        theirs = replays[PEER] = PeerReplay(peer, stream, what, **settings)
    settle(timing.gc)
    seconds = in_turns(stream, replays, timing.batch, progress)
    if theirs is not None:
        theirs.close()
    return {
        "num_steps": len(stream.steps) - stream.num_warm,
        "num_blocks": pools,
        "block_size": timing.block_size,
        "median_us": {name: medians_us(stream, kinds) for name, kinds in seconds.items()},
        "seconds": seconds,
    }
