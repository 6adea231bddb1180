"""What a request would take alone: the part of its latency that is no one's fault.

Alone, a request computes its own prompt, reads the weights once a step and its own K/V, and
waits for the step that is under way when it arrives. Host and communication are not part of
it: they are costs of how the service is built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paxkv.analysis.request_records import RequestRecord
from paxkv.simulation.work import CostModel, StepWork

StepSecondsAlone = Callable[[int], float]  # of one decode, by the tokens it attends to


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The unloaded service."""

    decode_alone_s: StepSecondsAlone
    budget_tokens: int  # of a step: longer prompts take several
    source: str  # where `decode_alone_s` is from, as a phrase

    def of_first_token(self, record: RequestRecord) -> dict[str, float]:
        """Seconds by cause up to the first token; at most what the request took."""
        num_new = max(record.num_prompt_tokens - record.num_cached_tokens, 1)
        num_steps = -(-num_new // self.budget_tokens)
        step_s = self.decode_alone_s(record.num_prompt_tokens)
        needed = {
            "own_prefill": record.ttft_causes_s.get("own_prefill", 0.0),
            "decode": step_s * num_steps,
            "queueing": step_s,  # the step that runs when it arrives
        }
        return {
            cause: min(seconds, record.ttft_causes_s.get(cause, 0.0))
            for cause, seconds in needed.items()
        }

    def of_next_token(self, record: RequestRecord) -> dict[str, float]:
        """The same per token after the first, of which there must be one."""
        num_next = record.num_output_tokens - 1
        middle = record.num_prompt_tokens + record.num_output_tokens // 2
        took_s = record.decode_causes_s.get("decode", 0.0) / num_next
        return {"decode": min(self.decode_alone_s(middle), took_s)}


def floor_of_cost_model(
    cost_model: CostModel,
    *,
    block_size: int,
    windows: Sequence[int | None],
    budget_tokens: int,
) -> Floor:
    """Of a batch of one, as the cost model has it.

    Args:
      windows: per cache group, tokens that a position sees; None: all.
    """

    def decode_alone_s(context_tokens: int) -> float:
        seen = tuple(min(context_tokens, w or context_tokens) for w in windows)
        return cost_model.seconds(
            StepWork(
                num_seqs=1,
                num_decode_tokens=1,
                num_prefill_tokens=0,
                decode_context_tokens=seen,
                decode_read_tokens=tuple(-(-n // block_size) * block_size for n in seen),
                prefill_pairs=(0,) * len(seen),
                prefill_context_tokens=(0,) * len(seen),
            )
        ).decode_s

    return Floor(
        decode_alone_s=decode_alone_s,
        budget_tokens=budget_tokens,
        source="the cost model's batch of one",
    )


def floor_of_records(records: Sequence[RequestRecord], *, budget_tokens: int) -> Floor:
    """Of the request that decoded fastest: of a run that was never idle, too high."""
    fastest_s = min(
        (
            r.decode_causes_s.get("decode", 0.0) / (r.num_output_tokens - 1)
            for r in records
            if r.tpot_s is not None
        ),
        default=0.0,
    )
    return Floor(
        decode_alone_s=lambda context_tokens: fastest_s,
        budget_tokens=budget_tokens,
        source="the request that decoded fastest",
    )
