"""What the turns of a session are made of, and which sessions share what.

Each function gives plans of sessions without end. `pairs` are lengths of prompts and
outputs (paxkv/workloads/lengths.py); the generator `rng` is advanced.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Protocol

import numpy as np
from jaxtyping import Float64

from paxkv.workloads.lengths import lognormal_lengths
from paxkv.workloads.plans import PlannedTurn
from paxkv.workloads.tokens import DOCUMENT, PREFIX, Segment, fresh_key
from paxkv.workloads.workload_config import MOST_TOKENS, WorkloadConfig

Turns = tuple[PlannedTurn, ...]


class Structure(Protocol):
    """Turns of one session after the other."""

    def __call__(
        self,
        config: WorkloadConfig,
        rng: np.random.Generator,
        pairs: Iterator[tuple[int, int]],
    ) -> Iterator[Turns]: ...


def single(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """One request, that shares nothing."""
    for session, (num_input, num_output) in enumerate(pairs):
        yield (_turn([_fresh(session, 0, num_input)], num_output),)


def chat(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """A user who answers each output after a while; the history grows.

    All sessions begin with the same `shared_tokens` tokens of a system prompt.
    """
    system = _prefix(0, config.shared_tokens)
    for session in count():
        turns = []
        for index in range(_num_turns(config, rng)):
            num_input, num_output = next(pairs)
            question = _fresh(session, index, num_input)
            segments = [question] if index else [*system, question]
            turns.append(_turn(segments, num_output, _think_s(config, rng, index)))
        yield tuple(turns)


def open_chat(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """A turn of some conversation, in an open loop: a session each, which brings the
    history of its conversation and waits for nobody.

    A request begins a conversation with the chance `new_conversations`, else it is the
    next turn of any that was begun. So the number of turns before it is geometric, once
    many have come. Requests share no tokens: all K/V are computed anew. What a prompt
    cannot keep (`max_prompt_tokens`) is not drawn.
    """
    most = config.max_prompt_tokens or MOST_TOKENS
    for session in count():
        history, num_before = 0, rng.geometric(config.new_conversations) - 1
        while num_before and history < most:
            history, num_before = history + sum(next(pairs)), num_before - 1
        num_input, num_output = next(pairs)
        prompt = min(history + num_input, most)
        yield (_turn([_fresh(session, 0, prompt)], num_output),)


def agents(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """An agent: instructions and tools that all sessions of one kind of agent share, a
    task, and then many short turns, each of which brings the output of a tool.

    The think time is that of the tool.
    """
    chances = _popularity(config.num_prefixes, config.popularity_exponent)
    for session in count():
        kind = _choose(rng, chances)
        turns = []
        for index in range(_num_turns(config, rng)):
            num_input, num_output = next(pairs)
            if index:
                sigma = config.tool_sigma
                drawn = lognormal_lengths(rng, 1, mean=config.tool_tokens, sigma=sigma)
                segments = [_fresh(session, index, int(drawn[0]))]
            else:
                prefix = _prefix(kind, config.shared_tokens)
                segments = [*prefix, _fresh(session, index, num_input)]
            turns.append(_turn(segments, num_output, _think_s(config, rng, index)))
        yield tuple(turns)


def shared_prefix(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """One request behind one of `num_prefixes` prefixes of `shared_tokens` tokens, of which
    the first are asked for most."""
    chances = _popularity(config.num_prefixes, config.popularity_exponent)
    for session, (num_input, num_output) in enumerate(pairs):
        prefix = _prefix(_choose(rng, chances), config.shared_tokens)
        yield (_turn([*prefix, _fresh(session, 0, num_input)], num_output),)


def rag(
    config: WorkloadConfig, rng: np.random.Generator, pairs: Iterator[tuple[int, int]]
) -> Iterator[Turns]:
    """Instructions, `documents_per_request` documents of a corpus, and a question.

    The most popular document stands first, so that requests for the same ones share the
    longest prefix that any fixed order of the corpus gives them.
    """
    weights = _weights(config.num_documents, config.popularity_exponent)
    instructions = _prefix(0, config.shared_tokens)
    for session, (num_input, num_output) in enumerate(pairs):
        chosen = rng.choice(
            config.num_documents, config.documents_per_request, replace=False, p=weights
        )
        documents = [
            Segment(num_tokens=config.document_tokens, key=DOCUMENT + document)
            for document in sorted(chosen.tolist())
        ]
        question = _fresh(session, 0, num_input)
        yield (_turn([*instructions, *documents, question], num_output),)


STRUCTURES: Mapping[str, Structure] = {
    "single": single,
    "chat": chat,
    "open_chat": open_chat,
    "agents": agents,
    "shared_prefix": shared_prefix,
    "rag": rag,
}


def _turn(
    segments: list[Segment], output_tokens: int, think_s: float | int = 0.0
) -> PlannedTurn:
    return PlannedTurn(
        segments=tuple(segments), output_tokens=output_tokens, think_s=think_s
    )


def _fresh(session: int, index: int, num_tokens: int) -> Segment:
    return Segment(num_tokens=num_tokens, key=fresh_key(session, index))


def _prefix(number: int, num_tokens: int) -> list[Segment]:
    return [Segment(num_tokens=num_tokens, key=PREFIX + number)] if num_tokens else []


def _num_turns(config: WorkloadConfig, rng: np.random.Generator) -> int:
    return int(rng.integers(config.min_turns, config.max_turns, endpoint=True))


def _think_s(config: WorkloadConfig, rng: np.random.Generator, index: int) -> float:
    """Exponential, as if users answered independently of when they saw the output."""
    if index == 0 or config.think_s == 0:
        return 0.0
    return float(rng.exponential(config.think_s))


def _popularity(num_items: int, exponent: float | int) -> Float64[np.ndarray, "num_items"]:
    """Chances of the items, summed up."""
    summed = np.cumsum(_weights(num_items, exponent))
    return summed / summed[-1]


def _weights(num_items: int, exponent: float | int) -> Float64[np.ndarray, "num_items"]:
    """Zipf's law: item i is chosen in proportion to (i + 1)**-exponent."""
    weights = (1.0 + np.arange(num_items)) ** -float(exponent)
    return weights / weights.sum()


def _choose(rng: np.random.Generator, chances: Float64[np.ndarray, "_"]) -> int:
    return int(np.searchsorted(chances, rng.random(), side="right"))
