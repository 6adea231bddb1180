"""What a request brings besides its prompt and sampling: whose it is, how urgent it is,
and everything but the tokens that its K/V depends on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.checks import Check, flag, integer, integer_in, named, number_where, optional

DEFAULT_PRIORITY = 35  # of 0..100, as TensorRT-LLM has it
_POSITION = integer_in(0, 2**31 - 1, "give a position in the prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA weights by name *and* version: the same name may get other weights.

    Raises:
      TypeError: name or version is no text, or empty.
    """

    name: str
    version: str

    def __post_init__(self):
        for field in ("name", "version"):
            named(f"adapter {field}", getattr(self, field), _text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image, audio clip or block of embeddings behind tokens [start, end): tells K/V of
    equal placeholder tokens apart, in keys only.

    Raises:
      TypeError, ValueError: a field of the wrong type, a digest that is too short, or an
        empty span.
    """

    kind: str  # "image", "audio", "embedding", ...
    digest: bytes  # of its content, at full width: at least 16 bytes
    start: int
    end: int

    def __post_init__(self):
        named("media kind", self.kind, _text)
        for field in ("start", "end"):
            named(f"media {field}", getattr(self, field), _POSITION)
        if not isinstance(self.digest, bytes) or len(self.digest) < 16:
            raise ValueError(
                f"media digest {self.digest!r} must be bytes, at least 16 of them; give "
                "the whole digest of the content, such as hashlib.sha256(data).digest()."
            )
        if self.start >= self.end:
            raise ValueError(
                f"media spans tokens [{self.start}, {self.end}); give 0 <= start < end."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long the K/V of prompt tokens [start, end) is worth keeping once released.

    TensorRT-LLM's retention: priority 0 (goes first) to 100, which falls back to the
    default `duration_s` after the release.

    Raises:
      TypeError, ValueError: a field of the wrong type or out of range, or an empty span.
    """

    start: int = 0
    end: int | None = None  # None: to the end of the prompt
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None  # None: without limit

    def __post_init__(self):
        named("retention start", self.start, _POSITION)
        named("retention end", self.end, optional(_POSITION))
        if self.end is not None and self.start >= self.end:
            raise ValueError(
                f"retention spans tokens [{self.start}, {self.end}); give start < end."
            )
        named("retention priority", self.priority, integer_in(0, 100, "35 is usual"))
        named(
            "retention duration_s",
            self.duration_s,
            optional(number_where(lambda x: x > 0, "> 0", "None is no limit")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Of one request. The defaults are those of a request that shares with all others.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range.
    """

    priority: int = 0  # smaller is more urgent; for the scheduling policy "priority"
    tenant: str = ""  # for the scheduling policy "fair_share"
    salt: str | bytes | None = None  # requests share K/V only if their salts are equal
    adapter: Adapter | None = None
    media: tuple[Media, ...] = ()
    # of the first token, where the position scheme is shifted; in keys only: it moves no
    # position itself
    position_offset: int = 0
    retention: tuple[Retention, ...] = ()  # later entries win
    reads_cache: bool = True  # False: computes all its prompt (and may still be shared)

    def __post_init__(self):
        for name, check in _CHECKS.items():
            named(name, getattr(self, name), check)


def require_options(value: Any) -> RequestOptions:
    """The value, if it is what it should be; None stands for the defaults.

    Raises:
      TypeError: it is something else.
    """
    if value is None:
        return RequestOptions()
    if not isinstance(value, RequestOptions):
        raise TypeError(
            f"options={value!r} is a {type(value).__name__}; give a RequestOptions."
        )
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("is no text; give a non-empty string")
    return value


def _salt(value: Any) -> str | bytes:
    if not isinstance(value, str | bytes):
        raise TypeError("is neither text nor bytes; give one of these, or None for no salt")
    if not value:
        raise ValueError("is empty; give at least one character, or None for no salt")
    return value


def _tenant(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text; give a string")
    return value


def _instance_of(kind: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"is no {kind.__name__}; make one")
        return value

    return check


def _tuple_of(kind: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, tuple) or not all(isinstance(x, kind) for x in value):
            raise TypeError(f"is no tuple of {kind.__name__}; give one")
        return value

    return check


_CHECKS: Mapping[str, Check] = {
    "priority": integer,
    "tenant": _tenant,
    "salt": optional(_salt),
    "adapter": optional(_instance_of(Adapter)),
    "media": _tuple_of(Media),
    "position_offset": integer_in(0, None, "0 is usual"),
    "retention": _tuple_of(Retention),
    "reads_cache": flag,
}
