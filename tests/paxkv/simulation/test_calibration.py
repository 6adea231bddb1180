from dataclasses import replace

import numpy as np
import pytest

from paxkv.simulation.calibration import (
    MIN_STEPS,
    fit_calibration,
    fit_error,
    with_total_of,
)
from paxkv.simulation.measured_model import MeasuredModel
from paxkv.simulation.step_records import StepRecord
from tests.paxkv.simulation.test_measured_model import CALIBRATION, DEVICE_S
from tests.priced import decodes, prefill

LIMITS = dict(max_num_seqs=64, max_num_batched_tokens=256)
TRUE = MeasuredModel(
    replace(CALIBRATION, device_s=DEVICE_S | {"loaded_blocks": 5e-3}, unseen=()), **LIMITS
)


def timed(work, factor=1.0):
    seconds = TRUE.seconds(work)
    return StepRecord(
        work=work,
        duration_s=factor * (seconds.total_s - seconds.host_s),
        host_s=factor * seconds.host_s,
        block_size=16,
    )


def some_works(rng, count):
    works = []
    for _ in range(count):
        num_seqs, context = int(rng.integers(1, 64)), int(rng.integers(1, 900))
        moved = dict(
            num_copied_blocks=int(rng.integers(0, 3)),
            num_swapped_out_blocks=int(rng.integers(0, 3)),
            num_swapped_in_blocks=int(rng.integers(0, 3)),
        )
        work = decodes(num_seqs, context)
        if rng.random() < 0.5:
            work = prefill(int(rng.integers(2, 190)), num_seqs, context)
        works.append(replace(work, **moved))
    return works


def fit(records, held_out=None):
    return fit_calibration(
        records, held_out or {}, device="cpu", model="recall", facts={}, **LIMITS
    )


def test_finds_the_coefficients_that_made_the_times():
    works = some_works(np.random.default_rng(0), 400)
    found = fit(
        [timed(work) for work in works[:300]],
        {"rest": [timed(work) for work in works[300:]]},
    )
    for name, value in CALIBRATION.device_s.items():
        assert found.device_s[name] == pytest.approx(value, rel=1e-3, abs=1e-9), name
    assert found.host_s == pytest.approx(CALIBRATION.host_s, abs=1e-9)
    assert found.errors["rest"].num_steps == 100
    assert found.errors["rest"].mape < 1e-3 > found.errors["fit"].p95
    assert found.unseen == ("loaded_blocks",)


def test_a_few_disturbed_steps_do_not_pull_the_fit():
    works = some_works(np.random.default_rng(1), 400)
    records = [timed(work, 5.0 if i % 10 == 0 else 1.0) for i, work in enumerate(works)]
    quiet = [timed(work) for work in works]
    found = fit(records, {"quiet": quiet})
    assert found.errors["quiet"].mape < 0.01
    assert found.errors["fit"].mape == pytest.approx(0.08, abs=0.01)  # a tenth, off by 4/5


def test_errors_are_relative_to_what_was_measured():
    works = some_works(np.random.default_rng(2), 50)
    error = fit_error(TRUE, [timed(work, 2.0) for work in works])
    assert (error.mape, error.p95, error.bias) == pytest.approx((0.5, 0.5, -0.5))
    error = fit_error(TRUE, [timed(work, 0.8) for work in works])
    assert (error.mape, error.bias) == pytest.approx((0.25, 0.25))


def test_noise_gives_no_negative_time():
    rng = np.random.default_rng(3)
    works = some_works(rng, 200)
    found = fit([timed(work, rng.uniform(0.5, 2)) for work in works])
    assert min([*found.device_s.values(), *found.host_s.values()]) >= 0
    assert 0.2 < found.errors["fit"].mape < 0.5


def test_too_few_steps_are_refused():
    works = some_works(np.random.default_rng(4), MIN_STEPS - 1)
    with pytest.raises(ValueError, match="31 steps are too few"):
        fit([timed(work) for work in works])


def test_models_are_not_mixed():
    works = some_works(np.random.default_rng(5), 40)
    records = [timed(work) for work in works]
    other = replace(
        works[0],
        decode_context_tokens=(1, 1),
        decode_read_tokens=(16, 16),
        prefill_pairs=(0, 0),
        prefill_context_tokens=(0, 0),
    )
    with pytest.raises(
        ValueError, match=r"steps have \[1, 2\] cache groups; fit one model"
    ):
        fit(records, {"other": [replace(records[0], work=other)]})


def test_steps_without_a_time_have_no_error():
    record = replace(timed(decodes(1, 1)), duration_s=0.0, host_s=0.0)
    with pytest.raises(ValueError, match="1 steps, 1 of them without a time"):
        fit_error(TRUE, [record])
    with pytest.raises(ValueError, match="0 steps"):
        fit_error(TRUE, [])


def test_a_calibration_can_be_scaled_to_the_whole_time_of_a_run():
    works = some_works(np.random.default_rng(4), 300)
    records = [timed(work, 9.0 if i % 10 == 0 else 1.0) for i, work in enumerate(works)]
    found = with_total_of(fit(records), records)
    cost = MeasuredModel(found, **LIMITS)
    predicted_s = sum(cost.seconds(work).total_s for work in works)
    measured_s = sum(record.duration_s + record.host_s for record in records)
    assert predicted_s == pytest.approx(measured_s)
    shares = [found.device_s[name] / value for name, value in DEVICE_S.items() if value]
    assert max(shares) == pytest.approx(min(shares), rel=0.05) and min(shares) > 1.5
