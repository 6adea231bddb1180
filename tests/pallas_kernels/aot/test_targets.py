"""Chips as XLA is told about them."""

import pytest

from pallas_kernels.aot.targets import A100, B200, H100, TARGETS, missing


@pytest.mark.parametrize(
    ("chip", "lines"),
    [
        (A100, ("core_count: 108", "{ major: 8 minor: 0 }", "optin: 166912")),
        (H100, ("core_count: 132", "{ major: 9 minor: 0 }", "optin: 232448")),
        (B200, ("core_count: 148", "{ major: 10 minor: 0 }", "optin: 232448")),
    ],
    ids=["a100", "h100", "b200"],
)
def test_target_config(chip, lines):
    text = chip.target_config()
    assert all(line in text for line in lines)
    assert text.count("{") == text.count("}")


def test_every_target_says_what_it_needs():
    for target in TARGETS.values():
        reason = missing(target)
        assert reason is None or f"--target={target.name} needs " in reason
    assert missing(TARGETS["cpu"]) is None


def test_ampere_gets_no_mosaic_kernel():
    assert "gpu" not in TARGETS["a100"].implementations
    assert "gpu" in TARGETS["h100"].implementations


def test_the_cpu_is_its_own_device():
    (device,) = TARGETS["cpu"].devices()
    with TARGETS["cpu"].lowering([device]):
        assert device.platform == "cpu"
