"""Beam search over one request: which beams go on, which hypotheses are kept, when to end.

Host only. The caller computes log-probabilities and moves K/V; this module decides. The
result equals that of `generate(num_beams=width, do_sample=False)` of transformers 5.24,
whose rules are, per step, over the continuations of all live beams by cumulative
log-probability:

- The best `width` that go on are the next live beams.
- One that ends (a stop token, or `max_tokens` reached) becomes a hypothesis only if it
  ranks among the best `width` of all continuations; one that ranks lower is dropped.
- A hypothesis scores its cumulative log-probability over `length ** length_penalty`; the
  length is that of the generated tokens, with the stop token and without the prompt. The
  best `width` hypotheses are kept.
- The search ends at `max_tokens`, or once `width` hypotheses are kept and
  `early_stopping` is True, or the best live beam cannot score above the worst of them.
  False takes its score at the present length; "never" at `max_tokens` if the penalty is
  positive, where longer beams score better. At `max_tokens` the live beams do not fill
  up, they compete.

Ties: the earlier live beam goes before the later one, within a beam the caller's order
counts (lowest id first, from a top-k), and a hypothesis kept earlier goes before a new
one. A vocabulary too small for `width` gives fewer live beams and hypotheses;
transformers fills up with copies there.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paxkv.checks import MAX_NUMBER, Check, integer_in, named, number

Candidates = Sequence[tuple[int, float]]  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How wide and how long to search, and what counts as better.

    Raises:
      TypeError, ValueError: a value of the wrong type or out of range.
    """

    width: int  # live beams, and hypotheses kept
    num_return: int
    max_tokens: int  # generated, the stop token included
    length_penalty: float | int  # > 0 favours long hypotheses, < 0 short ones
    early_stopping: bool | str  # True, False or "never"
    stop_token_ids: frozenset[int]

    def __post_init__(self):
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, named(name, getattr(self, name), check))
        if self.num_return > self.width:
            raise ValueError(
                f"num_return={self.num_return} must be <= width={self.width}, of which "
                "the hypotheses are; return fewer or search wider."
            )
        if abs(self.length_penalty) * math.log(self.max_tokens) > math.log(MAX_NUMBER):
            raise ValueError(
                f"length_penalty={self.length_penalty} must keep max_tokens="
                f"{self.max_tokens} ** length_penalty within {MAX_NUMBER}; 0 to 2 is usual."
            )


class Extension(NamedTuple):
    """A live beam after a step: a live beam before it, and one token more."""

    parent: int  # index among the live beams before the step
    token_id: int
    cumulative_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A result. `token_ids` ends in the stop token if one ended it."""

    token_ids: tuple[int, ...]
    score: float
    cumulative_logprob: float
    ended_by_stop_token: bool


class BeamSearch:
    """State of one request's search. It starts with one live beam of no tokens.

    Histories are paths of a tree whose nodes beams share, so a step costs O(width)
    nodes whatever the length. A node lives as long as a beam or hypothesis needs it.

    Example:
      search = BeamSearch(params)
      while live := search.advance(top_logprobs(live, search.num_candidates)):
          ...  # fork the K/V of each extension's parent and append its token
      best, *others = search.hypotheses()
    """

    def __init__(self, params: BeamParams):
        self.params = params
        self._num_tokens = 0  # of every live beam
        self._live = [_Beam(None, 0.0)]  # best first; empty: the search is over
        self._ended: list[_Ended] = []  # best first, at most `width`

    @property
    def num_candidates(self) -> int:
        """Candidates that each live beam brings to a step, or the whole vocabulary.

        Enough to decide as if it had brought the whole vocabulary: `width` of them go on
        whatever the others are, and the best `width` are among them. (transformers
        takes `max(2, 1 + stop tokens) * width` from all beams together.)
        """
        return self.params.width + len(self.params.stop_token_ids)

    def advance(self, candidates: Sequence[Candidates]) -> list[Extension]:
        """Chooses the next token of every beam.

        Args:
          candidates: of each live beam, in their order. Those at -inf are banned tokens
            and never chosen.

        Returns:
          The new live beams, best first, so the first child of a parent may continue
          in place. None when the search is over.

        Raises:
          ValueError: the search was over, or the candidates are not those of its live
            beams, best first. The search is then as it was.
        """
        if not self._live:
            raise ValueError("the search is over; take its hypotheses() and drop it.")
        if len(candidates) != len(self._live):
            raise ValueError(
                f"candidates of {len(candidates)} beams, but {len(self._live)} are live; "
                "give one list for each Extension of the previous step."
            )
        width, num_tokens = self.params.width, self._num_tokens + 1
        is_last = num_tokens == self.params.max_tokens
        extensions: list[Extension] = []
        live: list[_Beam] = []
        ended: list[_Ended] = []
        for rank, extension in enumerate(self._best_first(candidates)):
            if rank >= width and (is_last or len(live) == width):
                break
            parent, token_id, logprob = extension
            beam = _Beam(_Node(self._live[parent].tail, token_id), logprob)
            stops = token_id in self.params.stop_token_ids
            if not (stops or is_last):
                extensions.append(extension)
                live.append(beam)
            elif rank < width:
                ended.append(_Ended(self._score(logprob, num_tokens), beam, stops))
        self._num_tokens = num_tokens
        self._ended = _ranked(self._ended + ended)[:width]
        self._live = [] if self._is_decided(live) else live
        return extensions if self._live else []

    def hypotheses(self) -> list[Hypothesis]:
        """The best `num_return`, best first; fewer if there are no more.

        Before the end, live beams compete as they stand, as if cut off here.
        """
        cut_off = [
            _Ended(self._score(beam.cumulative_logprob, self._num_tokens), beam, False)
            for beam in self._live
        ]
        return [
            Hypothesis(
                token_ids=_tokens_to(beam.tail),
                score=score,
                cumulative_logprob=beam.cumulative_logprob,
                ended_by_stop_token=by_stop_token,
            )
            for score, beam, by_stop_token in _ranked(self._ended + cut_off)[
                : self.params.num_return
            ]
        ]

    def _best_first(self, candidates: Sequence[Candidates]) -> Iterator[Extension]:
        """All continuations by cumulative log-probability; `merge` keeps ties in order."""
        rows = [
            _extensions(parent, beam.cumulative_logprob, row)
            for parent, (beam, row) in enumerate(zip(self._live, candidates, strict=True))
        ]
        return heapq.merge(*rows, key=lambda extension: -extension.cumulative_logprob)

    def _is_decided(self, live: Sequence["_Beam"]) -> bool:
        """No live beam is left, or none is to change the hypotheses kept."""
        if not live or len(self._ended) < self.params.width:
            return not live
        if self.params.early_stopping is True:
            return True
        waits = self.params.early_stopping == "never" and self.params.length_penalty > 0
        num_tokens = self.params.max_tokens if waits else self._num_tokens
        best_possible = self._score(live[0].cumulative_logprob, num_tokens)
        return best_possible <= self._ended[-1].score

    def _score(self, cumulative_logprob: float, num_tokens: int) -> float:
        """A beam of no tokens scores as one of one: its log-probability, 0."""
        return cumulative_logprob / max(num_tokens, 1) ** self.params.length_penalty


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Node:
    """A token after those before it, which other nodes may share."""

    before: "_Node | None"
    token_id: int


class _Beam(NamedTuple):
    tail: _Node | None  # the last token; None: no tokens
    cumulative_logprob: float


class _Ended(NamedTuple):
    score: float
    beam: _Beam
    by_stop_token: bool


def _ranked(ended: list[_Ended]) -> list[_Ended]:
    """Best first; a stable sort, so ties stay in order."""
    return sorted(ended, key=lambda each: -each.score)


def _tokens_to(tail: _Node | None) -> tuple[int, ...]:
    token_ids = []
    while tail is not None:
        token_ids.append(tail.token_id)
        tail = tail.before
    return tuple(reversed(token_ids))


def _extensions(parent: int, before: float, row: Candidates) -> Iterator[Extension]:
    """Of one beam, up to its first banned token; raises where `row` is not best first."""
    previous = math.inf
    for token_id, logprob in row:
        if not logprob <= previous:  # also if either is NaN
            raise ValueError(
                f"log-probability {logprob} of token {token_id} follows {previous} of "
                f"live beam {parent}; give candidates best first and without NaN."
            )
        if logprob == -math.inf:
            return
        previous = logprob
        yield Extension(parent, token_id, before + logprob)


def _early_stopping(value: Any) -> bool | str:
    if value is True or value is False or value == "never":
        return value
    raise ValueError('must be True, False or "never"; False is usual')


def _stop_token_ids(value: Any) -> frozenset[int]:
    if not isinstance(value, frozenset | set):
        raise TypeError("is no set; give a frozenset of token ids, empty for none")
    check = integer_in(0, None, "give token ids")
    return frozenset(check(token_id) for token_id in value)


def _length_penalty(value: Any) -> float:
    return number(value, "0 to 2 is usual, 1 is the mean log-probability")


_CHECKS: Mapping[str, Check] = {
    "width": integer_in(1, None, "1 is the narrowest search"),
    "num_return": integer_in(1, None, "return at least the best"),
    "max_tokens": integer_in(1, None, "generate at least one token"),
    "length_penalty": _length_penalty,
    "early_stopping": _early_stopping,
    "stop_token_ids": _stop_token_ids,
}
