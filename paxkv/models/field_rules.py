"""What single values of a model's configuration must be; every broken one is named."""

import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LARGEST_INT = 2**31 - 1  # sizes, positions and token ids are int32 on the device


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition, and the words that end the sentence "the value must be"."""

    words: str
    holds: Callable[[Any], bool]


def _is_int(value: Any, low: int) -> bool:
    return type(value) is int and low <= value <= LARGEST_INT  # True is an int, too


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


COUNT = Rule(f"a whole number from 1 to {LARGEST_INT}", lambda value: _is_int(value, 1))
INDEX = Rule(f"a whole number from 0 to {LARGEST_INT}", lambda value: _is_int(value, 0))
POSITIVE = Rule("a finite number > 0", _is_positive)
NOT_NEGATIVE = Rule(
    "a finite number ≥ 0",
    lambda value: _is_positive(value) or (type(value) in (int, float) and value == 0),
)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))


def one_of(*names: str) -> Rule:
    return Rule(
        f"one of {', '.join(names)}",
        lambda value: isinstance(value, str) and value in names,
    )


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.words}, or null", lambda value: value is None or rule.holds(value))


def list_of(rule: Rule) -> Rule:
    return Rule(
        f"a list, each entry {rule.words}",
        lambda value: isinstance(value, list | tuple) and all(map(rule.holds, value)),
    )


def check_rules(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Applies the rule of each field that `values` has.

    Raises:
      ValueError: some are broken; all of these are named, with value and rule.
    """
    problems = [
        f"{name}={reprlib.repr(values[name])} must be {rule.words}"
        for name, rule in rules.items()
        if name in values and not rule.holds(values[name])
    ]
    if problems:
        raise ValueError(
            f"{'; '.join(problems)}. Correct the model's config or download it again."
        )
