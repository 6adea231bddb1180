import pytest

from paxkv.simulation.chips import CHIPS
from paxkv.simulation.profiles import ATTENTION_KERNELS, IDEAL, PROFILES, profile_of

SHARES = ("product", "weights_read", "decode_attention", "prefill_attention", "link")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_shares_are_shares_and_have_a_source(profile, chip):
    reached = profile_of(profile, chip, CHIPS[chip].host_link_bytes_per_s)
    assert all(0 < getattr(reached, name) <= 1 for name in SHARES)
    assert reached.attention_kernel in ATTENTION_KERNELS
    assert reached.source
    if profile == "ideal":
        assert reached is IDEAL


def test_numbers_fitted_to_the_paper():
    reached = profile_of("calibrated", "a100_40", 32e9)
    assert (reached.product, reached.weights_read, reached.decode_attention) == (
        0.55,
        0.85,
        0.6,
    )
    assert (reached.host_s_per_step, reached.host_s_per_seq) == (7e-3, 0.22e-3)
    assert dict(ATTENTION_KERNELS[reached.attention_kernel]) == {
        1: 0.40,
        2: 0.45,
        4: 0.45,
        8: 0.85,
        16: 1.0,
    }


def test_others_are_said_to_be_assumed():
    for chip in set(CHIPS) - {"a100_40", "a100_80"}:
        assert profile_of("calibrated", chip, 1e9).source == "assumed"


def test_kernel_tables_begin_at_one_and_rise():
    for table in ATTENTION_KERNELS.values():
        sizes, shares = zip(*table, strict=True)
        assert sizes[0] == 1 and list(sizes) == sorted(set(sizes))
        assert list(shares) == sorted(shares) and shares[-1] == 1.0


def test_unknown_profile_is_refused():
    with pytest.raises(ValueError, match="profile='best' is not offered; use one of ideal"):
        profile_of("best", "h100", 1e9)
