"""What is kept of a request that ended: its times, its counts, and where its time went."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Where a request's time goes. Each instant from its arrival to its end is in one of them.
CAUSES = (
    "queueing",  # waiting to be scheduled for the first time, or running without a token
    "own_prefill",  # computing its prompt
    "prefill_interference",  # a step was longer for the prompts of others
    "decode",  # weights and K/V read for decoding, of the whole batch
    "recompute",  # preempted: waiting to return, and K/V computed again, its own or others'
    "swap",  # blocks moved to and from the host, or copied
    "communication",  # between chips
    "host",  # planning, packing, committing
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, or one of its samples. Times are of the run's clock, from its start."""

    request_id: int
    sample_index: int = 0
    session: int = 0
    turn: int = 0
    replica: int = 0
    tenant: str = ""
    arrival_s: float
    first_scheduled_s: float | None  # None: never, as of the next
    first_token_s: float | None
    finish_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_recomputed_tokens: int
    num_swaps: int
    reason: str  # name of the FinishReason
    # seconds by cause, up to the first token and after it; together finish - arrival
    ttft_causes_s: Mapping[str, float] = field(default_factory=dict)
    decode_causes_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float | None:
        """From the arrival to the first token; None if there is none."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None of fewer than two."""
        if self.first_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.num_output_tokens - 1)


def read_records(path: Path) -> Iterator[tuple[Mapping[str, Any], RequestRecord]]:
    """The lines of a requests.jsonl: what else a line says (name, profile), and its record.

    Raises:
      ValueError: a line is no record; the message names it.
    """
    names = set(RequestRecord.__dataclass_fields__)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                values = json.loads(line)
                record = RequestRecord(**{k: v for k, v in values.items() if k in names})
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number} is no record of a request ({error}); name a "
                    "requests.jsonl of this version."
                ) from error
            yield {k: v for k, v in values.items() if k not in names}, record
