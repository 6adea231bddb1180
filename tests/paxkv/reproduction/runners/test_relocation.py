"""Costs of swapping and computing again: by the roofline, and really."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from configs.local import get_config as local
from configs.paper.setup import opt_13b
from paxkv.reproduction.runners import measured_relocation, relocation


def costs(block_size: int, num_tokens: int = 256) -> dict[str, float]:
    tree = opt_13b("sharegpt")
    tree["cache"]["block_size"] = block_size
    return relocation.run({**tree, "relocation": {"num_tokens": num_tokens}}, "calibrated")


def test_a_swap_costs_per_byte_and_per_copy():
    one, other, twice = costs(1), costs(256), costs(256, 512)
    num_copies = 80 * (256 - 1)  # K and V of 40 layers
    assert one["swap_out_ms"] - other["swap_out_ms"] == pytest.approx(
        1.93e-3 * num_copies, rel=1e-3
    )
    assert one["swap_ms"] == one["swap_out_ms"] + one["swap_in_ms"]
    assert twice["swap_ms"] == pytest.approx(2 * other["swap_ms"])
    assert one["recompute_ms"] == other["recompute_ms"] < twice["recompute_ms"]


class Recorder:
    """A `RelocationBench` that only tells how much it was asked to move and compute."""

    asked: ClassVar[set[tuple[str, int]]] = set()
    executor = SimpleNamespace(device_name="a machine")

    def __init__(self, config, decoder, **counts):
        del config, decoder, counts

    def swap(self, num_blocks: int) -> None:
        self.asked.add(("swap", num_blocks))

    def recompute(self, num_tokens: int) -> None:
        self.asked.add(("recompute", num_tokens))


def test_the_tokens_are_swapped_in_blocks_and_computed_in_one_step(monkeypatch):
    monkeypatch.setattr("paxkv.relocation.RelocationBench", Recorder)
    monkeypatch.setattr("paxkv.models.loading.load_decoder", lambda *names: None)
    tree = local().to_dict() | {"relocation": {"num_tokens": 64, "rounds": 1}}
    found = measured_relocation.run(tree, "calibrated")
    assert Recorder.asked == {("swap", 4), ("recompute", 64)}
    assert {*found} == {"swap_ms", "recompute_ms", "device"}


@pytest.mark.parametrize("runner", [relocation, measured_relocation])
def test_a_part_of_a_block_cannot_be_swapped(runner):
    tree = local().to_dict() | {"relocation": {"num_tokens": 40, "rounds": 1}}
    with pytest.raises(ValueError, match="no whole blocks of 16"):
        runner.run(tree, "calibrated")
