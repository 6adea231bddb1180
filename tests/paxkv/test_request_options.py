import hashlib

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from paxkv.request_options import Adapter, Media, RequestOptions, Retention

DIGEST = hashlib.sha256(b"cat").digest()


def unchecked(made_type, **fields):
    """As outside tests, where annotations are not enforced before the object's own."""
    made = object.__new__(made_type)
    for name in made_type.__dataclass_fields__:
        default = made_type.__dataclass_fields__[name].default
        object.__setattr__(made, name, fields.get(name, default))
    made.__post_init__()
    return made


def test_the_defaults_share_with_all_others():
    options = RequestOptions()
    assert options == RequestOptions()
    assert (options.salt, options.adapter, options.media) == (None, None, ())
    assert options.position_offset == 0
    assert options.reads_cache


@pytest.mark.parametrize("salt", ["tenant", "ü", b"\x00\xff", "a" * 1000])
def test_salts_are_text_or_bytes(salt):
    assert RequestOptions(salt=salt).salt == salt


@pytest.mark.parametrize(
    "salt",
    [0, 1, True, 1.5, float("nan"), ["x"], ("x",), {"a": 1}, bytearray(b"x"), object()],
)
def test_salts_of_other_types_raise(salt):
    """Some are equal across types (1, True), some not even to themselves."""
    with pytest.raises(TypeError, match="salt=.*neither text nor bytes; give one of these"):
        unchecked(RequestOptions, salt=salt)


@pytest.mark.parametrize("salt", ["", b""])
def test_an_empty_salt_is_a_mistake(salt):
    with pytest.raises(ValueError, match="salt=.*is empty; .*None for no salt"):
        RequestOptions(salt=salt)


@pytest.mark.parametrize("field", ["name", "version"])
@pytest.mark.parametrize("wrong", ["", None, 3, b"v1"])
def test_an_adapter_has_a_name_and_a_version(field, wrong):
    fields = {"name": "poet", "version": "1", field: wrong}
    with pytest.raises(TypeError, match=f"adapter {field}=.*non-empty string"):
        unchecked(Adapter, **fields)


@pytest.mark.parametrize("digest", [b"", DIGEST[:15], "a" * 32, 5, None])
def test_a_media_digest_is_kept_at_full_width(digest):
    with pytest.raises(ValueError, match="at least 16 of them; give the whole digest"):
        unchecked(Media, kind="image", digest=digest, start=0, end=4)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 3), (4, 3)])
def test_media_span_at_least_one_token(start, end):
    with pytest.raises(ValueError, match="give (0 <= start < end|a position)"):
        Media(kind="image", digest=DIGEST, start=start, end=end)


@pytest.mark.parametrize("priority", [-1, 101])
def test_retention_priorities_are_those_of_tensorrt(priority):
    with pytest.raises(
        ValueError, match=f"retention priority={priority} must be in 0..100"
    ):
        Retention(priority=priority)
    assert Retention(priority=0).priority == 0
    assert Retention(priority=100).priority == 100


@pytest.mark.parametrize("duration_s", [0.0, -1.0, float("nan"), float("inf")])
def test_retention_lasts_a_time(duration_s):
    with pytest.raises(ValueError, match="retention duration_s="):
        Retention(duration_s=duration_s)
    assert Retention(duration_s=0.5).duration_s == 0.5


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("priority", 1.5, "priority=1.5 is no integer"),
        ("priority", True, "priority=True is a bool"),
        ("tenant", None, "tenant=None is no text"),
        ("adapter", "poet", "adapter='poet' is no Adapter"),
        ("media", [], "media=.* is no tuple of Media"),
        ("media", ("cat",), "media=.* is no tuple of Media"),
        ("position_offset", 1.0, "position_offset=1.0 is no integer"),
        ("retention", (35,), "retention=.* is no tuple of Retention"),
        ("reads_cache", 1, "reads_cache=1 is no bool"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(field, wrong, message):
    with pytest.raises(TypeError, match=message):
        unchecked(RequestOptions, **{field: wrong})


def test_a_negative_offset_is_refused():
    with pytest.raises(ValueError, match="position_offset=-1 must be >= 0"):
        RequestOptions(position_offset=-1)


def test_annotations_agree_with_the_checks():
    with pytest.raises(TypeCheckError):
        RequestOptions(salt=1)
    assert unchecked(RequestOptions, priority=np.int64(3)).priority == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"start": "a"},
        {"start": -1},
        {"start": 0.5},
        {"end": "z"},
        {"start": 5, "end": 5},
        {"start": None},
    ],
)
def test_a_retention_spans_positions(fields):
    with pytest.raises((TypeError, ValueError), match="retention"):
        unchecked(Retention, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"kind": ["a"]}, {"kind": ""}, {"start": 0.5}, {"end": 2**70}, {"start": "a"}],
)
def test_media_span_positions_and_have_a_kind(fields):
    whole = {"kind": "image", "digest": b"x" * 16, "start": 0, "end": 3}
    with pytest.raises((TypeError, ValueError), match="media"):
        unchecked(Media, **whole | fields)
