import json
from dataclasses import replace

import pytest

from paxkv.results import ResultsNotWritten
from paxkv.simulation.measured_model import (
    Calibration,
    FitError,
    MeasuredModel,
    load_calibration,
    save_calibration,
)
from paxkv.simulation.step_features import feature_names, host_feature_names
from paxkv.simulation.work import CostModel
from tests.priced import decodes, prefill

DEVICE_S = dict.fromkeys(feature_names(1), 0.0) | {
    "decode_program": 2e-3,
    "decode_padded_seqs": 1e-4,
    "decode_context_tokens_0": 1e-6,
    "mixed_program": 3e-3,
    "mixed_padded_tokens": 1e-5,
    "mixed_prefill_pairs_0": 1e-8,
    "swapped_out_blocks": 1e-3,
    "copied_blocks": 2e-3,
}
CALIBRATION = Calibration(
    device_s=DEVICE_S,
    host_s=dict.fromkeys(host_feature_names(), 0.0) | {"step": 1e-4, "seqs": 1e-5},
    unseen=("loaded_blocks",),
    num_groups=1,
    device="cpu",
    model="recall",
    max_num_seqs=64,
    max_num_batched_tokens=256,
    errors={"fit": FitError(num_steps=40, mape=0.05, p95=0.1, bias=-0.01)},
    facts={"versions": {"jax": "0.12"}},
)
COST = MeasuredModel(CALIBRATION, max_num_seqs=64, max_num_batched_tokens=256)


def test_decodes_are_padded_to_their_shape():
    assert isinstance(COST, CostModel)
    found = COST.seconds(decodes(9, 100))
    assert found.decode_s == pytest.approx(2e-3 + 16 * 1e-4 + 900 * 1e-6)
    assert found.host_s == pytest.approx(1e-4 + 9 * 1e-5)
    assert found.total_s == pytest.approx(found.decode_s + found.host_s)


def test_other_limits_are_other_shapes():
    wide = MeasuredModel(CALIBRATION, max_num_seqs=256, max_num_batched_tokens=2048)
    assert wide.seconds(decodes(100, 1)).decode_s == pytest.approx(2e-3 + 12.8e-3 + 1e-4)
    assert wide.seconds(prefill(300)).total_s > COST.seconds(prefill(200)).total_s


def test_prefill_has_what_decodes_alone_would_not_take():
    found = COST.seconds(prefill(100, 9, 100))
    alone = COST.seconds(decodes(9, 100)).decode_s
    total = 3e-3 + 256 * 1e-5 + 5050 * 1e-8
    assert found.decode_s == pytest.approx(alone)
    assert found.prefill_s == pytest.approx(total - alone)


def test_one_token_chunks_share_the_time_of_decodes():
    work = replace(decodes(3, 10), num_prefill_tokens=1, num_seqs=4)
    found = COST.seconds(work)
    assert found.prefill_s == pytest.approx((found.prefill_s + found.decode_s) / 4)


def test_moves_have_their_price_or_are_refused():
    found = COST.seconds(decodes(1, 1, num_swapped_out_blocks=3, num_copied_blocks=2))
    assert (found.swap_s, found.copy_s) == (pytest.approx(3e-3), pytest.approx(4e-3))
    with pytest.raises(ValueError, match=r"a step has \['loaded_blocks'\], which no step"):
        COST.seconds(decodes(1, 1, num_loaded_blocks=1))


def test_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "new" / "calibration.json"
    save_calibration(path, CALIBRATION)
    assert load_calibration(path) == CALIBRATION
    assert json.loads(path.read_text("utf-8"))["facts"]["versions"] == {"jax": "0.12"}


@pytest.mark.parametrize(
    "change, message",
    [
        ("{", "is no JSON; python -m experiments.calibrate writes one"),
        ("[]", "has schema None, this version reads 1; calibrate again"),
        ({"schema": 99}, "has schema 99, this version reads 1"),
        ({"device_s": {}}, "is damaged: coefficients of .*decode_program.* are missing"),
        ({"host_s": {"step": -1}}, "is damaged: coefficients of"),
        ({"num_groups": 0}, "is damaged: num_groups=0 must be >= 1"),
        ({"extra": 1}, r"is damaged: it lacks \[\] and has unknown \['extra'\]"),
        ({"errors": {"fit": {}}}, "is damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, message):
    path = tmp_path / "calibration.json"
    save_calibration(path, CALIBRATION)
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text("utf-8")) | change)
    path.write_text(change, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_calibration(path)


def test_negative_coefficient_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    save_calibration(path, replace(CALIBRATION, device_s=DEVICE_S | {"mixed_seqs": -1.0}))
    with pytest.raises(ValueError, match="mixed_seqs=-1.0 must be ≥ 0"):
        load_calibration(path)


def test_unwritable_file_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsNotWritten, match="was not written"):
        save_calibration(tmp_path / "file" / "calibration.json", CALIBRATION)
