"""One test per way in which two requests could be taken for each other."""

import hashlib
import itertools

import pytest

from paxkv.cache_keys import block_key, isolation_key, token_bytes
from paxkv.request_options import Adapter, Media, RequestOptions
from paxkv.tiers.disk_keys import child_digest
from tests.fakes import make_request, make_scheduler
from tests.scheduling import add, step

MODEL = (("model", "tiny", "1"),)
CAT, DOG = (hashlib.sha256(name).digest() for name in (b"cat", b"dog"))

DIFFERENT = {
    "plain": {},
    "a salt": {"salt": "x"},
    "the salt as bytes": {"salt": b"x"},
    "another salt": {"salt": "y"},
    "a salt with a byte more": {"salt": "x\0"},
    "an adapter of the salt's name": {"adapter": Adapter(name="x", version="1")},
    "a newer version": {"adapter": Adapter(name="x", version="2")},
    "another adapter": {"adapter": Adapter(name="y", version="1")},
    "name and version joined elsewhere": {"adapter": Adapter(name="x1", version="1")},
    "joined the other way": {"adapter": Adapter(name="x", version="11")},
    "both": {"adapter": Adapter(name="x", version="1"), "salt": "x"},
    "shifted positions": {"position_offset": 1},
    "the offset as a salt": {"salt": "1"},
    "shifted further": {"position_offset": 2},
}
ADAPTERS = tuple(fields["adapter"] for fields in DIFFERENT.values() if "adapter" in fields)
SAME = {
    "urgent": {"priority": -5},
    "of a tenant": {"tenant": "x"},
    "computes anew": {"reads_cache": False},
}


def key_of(fields, model=MODEL):
    return isolation_key(model, RequestOptions(**fields))


@pytest.mark.parametrize("pair", [*itertools.combinations(DIFFERENT, 2)], ids=" | ".join)
def test_requests_are_kept_apart_on_the_device_and_on_disk(pair):
    one, other = (key_of(DIFFERENT[name]) for name in pair)
    assert one != other
    assert child_digest(b"", one) != child_digest(b"", other)


@pytest.mark.parametrize("name", SAME)
def test_what_no_k_or_v_depends_on_keeps_nobody_apart(name):
    assert key_of(SAME[name]) == key_of({})


@pytest.mark.parametrize(
    "model", [(), (("model", "tiny", "2"),), (("model", "tiny1", ""),), (("salt", "x"),)]
)
def test_another_model_or_revision_shares_nothing(model):
    assert key_of({}, model) != key_of({})
    assert key_of({"salt": "y"}, model) != key_of({"salt": "y"})


def image(digest=CAT, start=2, end=6, kind="image"):
    return Media(kind=kind, digest=digest, start=start, end=end)


TOKENS = token_bytes((9,) * 8)  # placeholders look the same whatever is behind them


@pytest.mark.parametrize(
    "media",
    [
        (),
        (image(DOG),),
        (image(kind="audio"),),
        (image(start=3),),
        (image(end=7),),
        (image(), image(DOG, 6, 8)),
        (image(DOG), image()),
    ],
    ids=["none", "content", "kind", "start", "end", "another behind it", "below it"],
)
def test_media_keep_equal_placeholders_apart(media):
    one, other = block_key(TOKENS, 0, (image(),)), block_key(TOKENS, 0, media)
    assert one != other
    assert child_digest(b"", one) != child_digest(b"", other)


def test_the_offset_of_media_is_that_in_the_block():
    """The second half of one image is not the first half of another's place."""
    spanning = (image(start=6, end=12),)
    first, second = (block_key(TOKENS, start, spanning) for start in (0, 8))
    assert first != second
    assert second != block_key(TOKENS, 8, (image(start=8, end=12),))


@pytest.mark.parametrize("media", [image(end=8, start=4), image(start=16, end=20)])
def test_a_block_that_no_media_touch_has_its_tokens_as_key(media):
    """[start, end) ends before it, or begins behind it."""
    assert block_key(TOKENS, 8, (media,)) == TOKENS
    assert block_key(TOKENS, 8, ()) == TOKENS


def hit_tokens(first, second, prompt=12, **settings):
    """Of the second of two requests one after the other, with these options."""
    scheduler = make_scheduler(prefix_caching=True, adapters=ADAPTERS, **settings)
    found = []
    for i, fields in enumerate((first, second)):
        request = make_request(prompt, 2, request_id=i, options=RequestOptions(**fields))
        add(scheduler, request)
        while scheduler.has_unfinished:
            step(scheduler)
        found.append(request.num_cached_tokens)
    assert found[0] == 0
    return found[1]


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("name", [name for name in DIFFERENT if name != "plain"])
def test_nothing_is_hit_across_options(name, granularity):
    settings = {"granularity": granularity}
    assert hit_tokens({}, DIFFERENT[name], **settings) == 0
    assert hit_tokens(DIFFERENT[name], {}, **settings) == 0
    assert hit_tokens(DIFFERENT[name], DIFFERENT[name], **settings) == 11


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize(
    ("other", "num_shared"),
    [(image(DOG, 5, 7), 4), (image(CAT, 6, 8), 4), (image(CAT, 5, 7), 11)],
    ids=["another image", "elsewhere", "the same"],
)
def test_a_hit_ends_where_media_differ(other, num_shared, granularity):
    """Blocks of 4; the image is in the second. What it touches is compared whole."""
    mine = {"media": (image(CAT, 5, 7),)}
    found = hit_tokens(mine, {"media": (other,)}, granularity=granularity)
    assert found == num_shared


def test_media_and_plain_tokens_share_only_what_lies_before():
    mine = {"media": (image(CAT, 5, 7),)}
    for granularity in ("block", "token"):
        assert hit_tokens(mine, {}, granularity=granularity) == 4
        assert hit_tokens({}, mine, granularity=granularity) == 4


def test_who_does_not_read_the_cache_still_feeds_it():
    silent = {"reads_cache": False}
    assert hit_tokens({}, silent) == 0
    assert hit_tokens(silent, {}) == 11
