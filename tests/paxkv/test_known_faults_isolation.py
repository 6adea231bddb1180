"""Faults that users of other systems met: K/V of another tenant, adapter or image."""

import hashlib
import itertools

import pytest

from paxkv.cache_keys import isolation_key
from paxkv.request_options import Adapter, Media, RequestOptions
from paxkv.sampling_params import SamplingParams
from tests.fakes import make_engine, make_scheduler
from tests.told import serve

ADAPTERS = tuple(
    Adapter(name=name, version=version) for name in ("en", "de") for version in ("1", "2")
)
PROMPT = tuple(range(1, 17))


def num_found(first, second, prompts=(PROMPT, PROMPT)):
    """Tokens that the second of two requests, one after the other, finds cached."""
    engine = make_engine(prefix_caching=True, adapters=ADAPTERS)
    found = []
    for prompt, options in zip(prompts, (first, second), strict=True):
        request_id = engine.add(prompt, SamplingParams(max_tokens=1), options=options)
        found.append(serve(engine).metrics[request_id, 0].num_cached_tokens)
    assert found[0] == 0
    return found[1]


def image(content, start=4, end=8):
    digest = hashlib.sha256(content).digest()
    return RequestOptions(media=(Media(kind="image", digest=digest, start=start, end=end),))


def test_prompts_whose_hashes_collide_share_blocks():
    """vllm#12621, #15297, #54727, vllm-project/aibrix#2329: built-in, predictable or
    crafted hashes, or only the last of them compared. Keys here are the tokens."""
    same_hash = (hash(-1), hash(-2))
    assert same_hash[0] == same_hash[1]  # Python's best known collision
    plain = RequestOptions()
    for position in range(16):  # each token counts, in each block
        other = (*PROMPT[:position], 99, *PROMPT[position + 1 :])
        assert num_found(plain, plain, (PROMPT, other)) == position // 4 * 4
    moved = (*PROMPT[4:8], *PROMPT[:4], *PROMPT[8:])  # equal blocks in other places
    assert num_found(plain, plain, (PROMPT, moved)) == 0


def test_blocks_of_equal_tokens_share_behind_different_ones():
    """vllm-project/aibrix#2329: the last hash and the count were compared alone."""
    plain = RequestOptions()
    other = (*[9] * 4, *PROMPT[4:])
    assert num_found(plain, plain, (PROMPT, other)) == 0


def test_the_name_of_an_adapter_is_taken_for_a_salt():
    """vllm#44701: extra keys of two kinds were equal."""
    adapter = RequestOptions(adapter=ADAPTERS[0])
    assert num_found(adapter, RequestOptions(salt="en")) == 0
    assert num_found(RequestOptions(salt="en"), adapter) == 0
    assert num_found(adapter, adapter) == 15


def test_a_salt_of_bytes_is_taken_for_one_of_text():
    """As vllm#44701: what differs in type alone is told apart, too."""
    assert num_found(RequestOptions(salt="s"), RequestOptions(salt=b"s")) == 0


def test_an_adapter_that_got_new_weights_reads_old_kv():
    """vllm#30931, #42125: the key had the adapter's name, not which weights it was."""
    for one, other in itertools.permutations(ADAPTERS, 2):
        assert num_found(RequestOptions(adapter=one), RequestOptions(adapter=other)) == 0


def test_adapters_are_ignored_by_the_cache():
    """vllm#3264, ggml-org/llama.cpp#26207: the adapter was not in the key at all."""
    adapter = RequestOptions(adapter=ADAPTERS[0])
    assert num_found(RequestOptions(), adapter) == 0
    assert num_found(adapter, RequestOptions()) == 0


def test_equal_placeholders_hide_different_images():
    """vllm#20261, LMCache#690: the tokens of both are the same."""
    assert num_found(image(b"cat"), image(b"dog")) == 4  # what lies before the image
    assert num_found(image(b"cat"), image(b"cat")) == 15
    assert num_found(image(b"cat", 6, 11), image(b"dog", 6, 11)) == 4  # in two blocks


def test_digests_of_images_are_cut():
    """LMCache#4086, sglang#2151: 16 bits of the digest, or a token made of it."""
    digests = [bytes([1] * 31 + [last]) for last in (1, 2)]
    one, other = (
        RequestOptions(media=(Media(kind="image", digest=digest, start=4, end=8),))
        for digest in digests
    )
    assert num_found(one, other) == 4
    with pytest.raises(ValueError, match="at least 16"):
        Media(kind="image", digest=b"ab", start=0, end=1)


def test_another_revision_of_the_model_reads_its_kv():
    """The same for the model itself: its key is in that of every request."""
    options = RequestOptions(salt="s")
    keys = {isolation_key((("revision", name),), options) for name in ("1", "2")}
    assert len(keys) == 2
    root = make_scheduler(prefix_caching=True).allocator.prefixes.root
    assert root(options).key == root(RequestOptions(salt="s")).key
    assert root(options).key != root(RequestOptions(salt="t")).key
