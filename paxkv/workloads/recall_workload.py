"""Requests whose outputs the shipped model can get right or wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paxkv import recall
from paxkv.workloads.arrivals import gaps_s
from paxkv.workloads.lengths import scale_lengths, sharegpt_lengths
from paxkv.workloads.sessions import Session, Turn
from paxkv.workloads.workload_config import WorkloadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallWorkload:
    """Sessions of one turn whose outputs can be scored; session i asks `prompts[i]`."""

    sessions: tuple[Session, ...]
    prompts: tuple[recall.RecallPrompt, ...]
    num_raised: int  # sessions lengthened to one pair, one query and its answer

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The only turn of each session."""
        return tuple(session.turns[0] for session in self.sessions)


def recall_workload(config: WorkloadConfig, max_context: int) -> RecallWorkload:
    """ShareGPT's lengths, scaled to `max_context`, filled with recall prompts.

    Raises:
      ValueError: the shortest recall prompt and its answer exceed the context, or the
        config asks for other lengths or structures, or for no number of requests.
    """
    shortest = recall.prompt_len(num_pairs=1, num_queries=1) + recall.VALUE_LEN
    if max_context < shortest:
        raise ValueError(
            f"{max_context=} cannot hold a recall prompt and its answer; they need "
            f"{shortest} tokens. Use a model with a longer context."
        )
    count = config.num_requests
    if config.structure != "single" or config.lengths != "sharegpt" or count is None:
        raise ValueError(
            f"recall prompts need structure='single' and lengths='sharegpt', not "
            f"{config.structure!r} and {config.lengths!r}; leave both out."
        )
    if config.num_samples > 1 or config.use_beam_search or config.max_prompt_tokens:
        raise ValueError(
            f"recall prompts have one output and are whole, not num_samples="
            f"{config.num_samples}, use_beam_search={config.use_beam_search}, "
            f"max_prompt_tokens={config.max_prompt_tokens}; leave these out."
        )
    rng = np.random.default_rng(config.seed)
    inputs, outputs = sharegpt_lengths(rng, count)
    gaps = gaps_s(
        rng,
        config.arrival,
        count,
        rate_per_s=config.rate_per_s,
        burstiness_cv=config.burstiness_cv,
    )
    sessions, prompts, num_raised = [], [], 0
    for prompt_len, output_len, arrival_s in zip(
        scale_lengths(inputs, max_context).tolist(),
        scale_lengths(outputs, max_context).tolist(),
        np.cumsum(gaps).tolist(),
        strict=True,
    ):
        prompt, raised = recall.fill_prompt(rng, prompt_len, output_len)
        room = max_context - len(prompt.prompt_ids)  # less than drawn only if raised
        turn = Turn(
            prompt_ids=prompt.prompt_ids,
            max_tokens=min(max(output_len, recall.VALUE_LEN), room),
        )
        sessions.append(Session(arrival_s=arrival_s, turns=(turn,)))
        prompts.append(prompt)
        num_raised += raised
    return RecallWorkload(
        sessions=tuple(sessions), prompts=tuple(prompts), num_raised=num_raised
    )


def score_recall(
    prompts: Sequence[recall.RecallPrompt], outputs: Sequence[list[int]]
) -> tuple[int, int]:
    """Keys answered right, and keys answered at all, over all requests."""
    scores = [
        recall.score(prompt, output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    return sum(right for right, _ in scores), sum(answered for _, answered in scores)
