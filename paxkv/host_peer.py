"""vLLM's host side as a child process, which replays a stream in turns with ours."""

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from paxkv.host_bench import Seconds
from paxkv.host_stream import Stream


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
        """`what`: "steps" or "manager". `settings`: num_blocks, block_size, clock and gc."""
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
