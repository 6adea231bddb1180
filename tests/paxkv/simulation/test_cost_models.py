import pytest

from paxkv.simulation.cost_model import RooflineModel
from paxkv.simulation.cost_models import build_cost_model
from paxkv.simulation.measured_model import MeasuredModel, save_calibration
from tests.paxkv.simulation.test_measured_model import CALIBRATION
from tests.priced import decodes, hardware_of, shape_of


def build(profile, hardware, model="recall"):
    return build_cost_model(
        profile,
        hardware,
        shape_of(model),
        block_size=16,
        kv_dtype="float32",
        max_num_seqs=64,
        max_num_batched_tokens=256,
    )


def test_calibrated_is_what_was_measured(tmp_path):
    path = tmp_path / "calibration.json"
    save_calibration(path, CALIBRATION)
    hardware = hardware_of("cpu", calibration=str(path))
    cost = build("calibrated", hardware)
    assert isinstance(cost, MeasuredModel)
    again = MeasuredModel(CALIBRATION, max_num_seqs=64, max_num_batched_tokens=256)
    assert cost.seconds(decodes(3, 50)) == again.seconds(decodes(3, 50))
    with pytest.raises(ValueError, match="num_groups=1; gemma3_270m has 2. Calibrate"):
        build("calibrated", hardware, "gemma3_270m")
    with pytest.raises(ValueError, match="chip='cpu' has no published figures"):
        build("ideal", hardware)


def test_without_a_calibration_both_are_rooflines(tmp_path):
    for profile in ("ideal", "calibrated"):
        assert isinstance(build(profile, hardware_of("h100")), RooflineModel)
    with pytest.raises(ValueError, match="profile='fast' is not offered"):
        build("fast", hardware_of("h100"))
    with pytest.raises(ValueError, match="cannot be read"):
        build("calibrated", hardware_of("cpu", calibration=str(tmp_path / "none.json")))
