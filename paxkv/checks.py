"""Checks of single values: each takes any value, and returns it as the type that is kept.

An error says the rule and the remedy; `named` puts the name and the value before them.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

MAX_NUMBER = 1e30  # far inside float32, in which the device computes

Check = Callable[[Any], Any]


def named(name: str, value: Any, check: Check) -> Any:
    """`check(value)`; its TypeError or ValueError then names what was wrong."""
    try:
        return check(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={value!r} {error}.") from None


def keep_checked(config: Any, checks: Mapping[str, Check], prefix: str = "") -> None:
    """Replaces fields of a frozen dataclass by what their checks return.

    Raises:
      ValueError: names the field behind the prefix, its value, the rule and the remedy.
    """
    for name, check in checks.items():
        try:
            value = named(prefix + name, getattr(config, name), check)
        except TypeError as error:
            raise ValueError(str(error)) from None
        object.__setattr__(config, name, value)


def integer(value: Any, remedy: str = "give an integer") -> int:
    """An int, also from the integers of numpy."""
    if isinstance(value, bool):
        raise TypeError(f"is a bool, not an integer; {remedy}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"is no integer; {remedy}") from None


def flag(value: Any) -> bool:
    """True or False."""
    if value is True or value is False:
        return value
    raise TypeError("is no bool; give True or False")


def number(value: Any, remedy: str = "give a number") -> float:
    """A finite float that the device can compute with."""
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"is a {type(value).__name__}, not a number; {remedy}")
    try:
        as_float = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"is no number; {remedy}") from None
    except OverflowError:
        as_float = math.inf
    if not (math.isfinite(as_float) and abs(as_float) <= MAX_NUMBER):
        raise ValueError(f"must be finite and at most {MAX_NUMBER}; {remedy}")
    return as_float


def integer_in(lowest: int, highest: int | None, remedy: str) -> Check:
    """Integers in [lowest, highest], or from `lowest` on."""

    def check(value: Any) -> int:
        kept = integer(value, remedy)
        if kept < lowest or (highest is not None and kept > highest):
            limit = f">= {lowest}" if highest is None else f"in {lowest}..{highest}"
            raise ValueError(f"must be {limit}; {remedy}")
        return kept

    return check


def number_where(holds: Callable[[float], bool], rule: str, remedy: str) -> Check:
    """Numbers for which the rule holds."""

    def check(value: Any) -> float:
        kept = number(value, remedy)
        if not holds(kept):
            raise ValueError(f"must be {rule}; {remedy}")
        return kept

    return check


def one_of(offered: tuple[str, ...], remedy: str = "") -> Check:
    """One of some names."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in offered:
            return value
        raise ValueError(f"is not offered; use one of {', '.join(offered)}{remedy}")

    return check


def optional(check: Check) -> Check:
    """None, or what `check` lets pass."""
    return lambda value: None if value is None else check(value)
