"""How the next token of a request is chosen, and when the request ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paxkv.checks import (
    MAX_NUMBER,
    Check,
    flag,
    integer,
    integer_in,
    number,
    number_where,
    optional,
)

MAX_LOGPROBS = 20  # most alternatives reported per token
MAX_SEED = 2**64 - 1
MAX_PENALTY = 2.0  # of presence and frequency, as in OpenAI's and vLLM's interfaces

Number = float | int  # kept as float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request; the names are those of vLLM.

    `temperature == 0` is greedy. Log-probabilities are of the model's own
    distribution, before penalties, bias and temperature. Sequences are kept as tuples
    and `logit_bias` as a tuple of (id, bias) pairs sorted by id, so that the object is
    immutable, hashable and picklable.

    Example:
      SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95, stop="\\n\\n", seed=1)

    Raises:
      ValueError: lists every value that breaks a rule, with the rule and the remedy.
    """

    max_tokens: int = 16
    # the first `min_tokens` tokens are no EOS and no stop token, even with ignore_eos,
    # and complete no stop string
    min_tokens: int = 0
    temperature: Number = 1.0
    top_k: int = 0  # 0 and -1: all tokens
    top_p: Number = 1.0
    min_p: Number = 0.0
    repetition_penalty: Number = 1.0  # of tokens in prompt or output (CTRL, 2019)
    presence_penalty: Number = 0.0  # of tokens in the output
    frequency_penalty: Number = 0.0  # of tokens in the output, per occurrence
    logit_bias: Mapping[int, Number] | Sequence[tuple[int, float]] | None = None
    seed: int | None = None  # None: from the engine's seed and the request id
    stop: Sequence[str] = ()  # one string may be given as it is
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives per output token; 0: the chosen only
    prompt_logprobs: int | None = None  # the same for prompt tokens
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1  # outputs to return
    best_of: int | None = None  # sequences to draw, of which the n likeliest return
    use_beam_search: bool = False  # of width best_of (or n), returns the n best beams
    length_penalty: Number = 1.0  # of beams: score = log-probability / length ** this
    early_stopping: bool | str = False  # of beams: True, False or "never", as in HF

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, check(value))
            except (TypeError, ValueError) as error:
                problems.append(f"{name}={value!r} {error}")
        if not problems and self.min_tokens > self.max_tokens:
            problems.append(
                f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}; "
                "raise max_tokens or lower min_tokens"
            )
        if not problems:
            problems += self._sequence_problems()
        if problems:
            raise ValueError(f"SamplingParams: {'; '.join(problems)}.")

    @property
    def num_sequences(self) -> int:
        """That run side by side: samples, or beams."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_beams(self) -> int:
        """0 without beam search."""
        return self.num_sequences if self.use_beam_search else 0

    def _sequence_problems(self) -> list[str]:
        if self.num_sequences < self.n:
            return [f"best_of={self.best_of} is less than n={self.n}; draw as many"]
        if self.use_beam_search:
            if abs(self.length_penalty) * math.log(self.max_tokens) > math.log(MAX_NUMBER):
                return [
                    f"length_penalty={self.length_penalty} takes max_tokens="
                    f"{self.max_tokens} ** length_penalty beyond {MAX_NUMBER}; 0 to 2 is "
                    "usual"
                ]
            return self._set_beside("use_beam_search", _NEUTRAL_FOR_BEAMS)
        if self.num_sequences > self.n:  # ranked before any text is known
            return self._set_beside("best_of > n", {"stop": ((),)})
        return []

    def _set_beside(self, what: str, neutral: Mapping[str, Sequence[Any]]) -> list[str]:
        return [
            f"{name}={getattr(self, name)!r} has no meaning with {what}; leave it out"
            for name, values in neutral.items()
            if getattr(self, name) not in values
        ]


def require_sampling_params(value: Any, name: str = "sampling_params") -> SamplingParams:
    """The value, if it is what it should be.

    Raises:
      TypeError: it is something else, such as a dict.
    """
    if isinstance(value, SamplingParams):
        return value
    raise TypeError(
        f"{name}={value!r} is a {type(value).__name__}; give a SamplingParams, such as "
        "SamplingParams(max_tokens=16)."
    )


def check_token_ids(sampling: SamplingParams, vocab_size: int) -> str | None:
    """A sentence about token ids that the model lacks, or None.

    Args:
      vocab_size: V of the model's logits.
    """
    named = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": dict(sampling.logit_bias or ()),
    }
    problems = [
        f"{name} names token ids {unknown}"
        for name, ids in named.items()
        if (unknown := [token_id for token_id in ids if token_id >= vocab_size])
    ]
    if not problems:
        return None
    return (
        f"{' and '.join(problems)}, but the model's ids are 0..{vocab_size - 1}; "
        "remove them or use this model's own tokenizer."
    )


def _items(value: Any, what: str) -> tuple[Any, ...]:
    """The items of an iterable; None has none."""
    try:
        return () if value is None else tuple(value)
    except TypeError:
        raise TypeError(f"is no sequence; give one of {what}") from None


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _items(value, "strings")
    if not all(isinstance(string, str) for string in strings):
        raise TypeError("holds something that is no string; give strings")
    if "" in strings:
        raise ValueError("holds an empty string, which any text contains; remove it")
    return strings


def _token_ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes):
        raise TypeError("is text; give token ids, or use `stop` for text")
    ids = tuple(map(integer, _items(value, "token ids")))
    if any(token_id < 0 for token_id in ids):
        raise ValueError("holds a negative id; token ids start at 0")
    return ids


def _bias_pairs(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else _items(value, "(id, bias)")
    biases = {integer(token_id): number(bias) for token_id, bias in map(_pair, pairs)}
    if any(token_id < 0 for token_id in biases):
        raise ValueError("holds a negative id; token ids start at 0")
    return tuple(sorted(biases.items()))


def _pair(value: Any) -> tuple[Any, Any]:
    try:
        token_id, bias = value
    except (TypeError, ValueError):
        raise TypeError(
            f"holds {value!r}, which is no (id, bias) pair; give a dict of biases by id"
        ) from None
    return token_id, bias


def _early_stopping(value: Any) -> bool | str:
    if value is True or value is False or value == "never":
        return value
    raise ValueError('is not offered; use True, False or "never"')


# Settings that beam search does not know, and their values that say nothing.
_NEUTRAL_FOR_BEAMS: Mapping[str, Sequence[Any]] = {
    "temperature": (0.0, 1.0),
    "top_k": (0, -1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": (None, ()),
    "min_tokens": (0,),
    "stop": ((),),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
}
_PENALTY = number_where(
    lambda x: abs(x) <= MAX_PENALTY, f"in [-{MAX_PENALTY}, {MAX_PENALTY}]", "0 is off"
)
_ALTERNATIVES = optional(integer_in(0, MAX_LOGPROBS, "None is off, 0 the chosen only"))

_CHECKS: Mapping[str, Check] = {
    "max_tokens": integer_in(1, None, "ask for at least one token"),
    "min_tokens": integer_in(0, None, "0 is off"),
    "temperature": number_where(lambda x: x >= 0, ">= 0", "0 is greedy"),
    "top_k": integer_in(-1, None, "0 or -1 is off"),
    "top_p": number_where(lambda x: 0 < x <= 1, "in (0, 1]", "1 is off"),
    "min_p": number_where(lambda x: 0 <= x <= 1, "in [0, 1]", "0 is off"),
    "repetition_penalty": number_where(lambda x: x > 0, "> 0", "1 is off"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": optional(_bias_pairs),
    "seed": optional(integer_in(0, MAX_SEED, "None takes the engine's")),
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": flag,
    "logprobs": _ALTERNATIVES,
    "prompt_logprobs": _ALTERNATIVES,
    "include_stop_str_in_output": flag,
    "skip_special_tokens": flag,
    "n": integer_in(1, None, "ask for at least one output"),
    "best_of": optional(integer_in(1, None, "None is n")),
    "use_beam_search": flag,
    "length_penalty": number,
    "early_stopping": _early_stopping,
}
