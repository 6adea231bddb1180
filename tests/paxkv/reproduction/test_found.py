import pytest

from paxkv.reproduction.found import Found, NotRun, Run

FOUND = Found(
    [
        Run(
            labels={"system": "vLLM", "cache.block_size": 16},
            metrics={"a": {"b": 1.0, "c": None}},
        ),
        Run(labels={"system": "vLLM", "cache.block_size": 32}, metrics={"a": {"b": 2.0}}),
        Run(labels={"system": "Orca", "cache.block_size": 16}, metrics={"a": {"b": 3.0}}),
    ]
)


def test_a_metric_is_found_by_labels():
    assert FOUND("a.b", system="vLLM", block_size=32) == 2.0
    assert FOUND("a.b", system="Orca") == 3.0
    assert FOUND.each("a.b", "block_size", system="vLLM") == {16: 1.0, 32: 2.0}


def test_what_did_not_run_is_no_number():
    with pytest.raises(NotRun, match="no run with"):
        FOUND("a.b", system="FT")
    with pytest.raises(NotRun, match="no run with"):
        FOUND.each("a.b", "block_size", system="FT")


def test_several_runs_and_missing_metrics_are_errors():
    with pytest.raises(ValueError, match="2 runs have"):
        FOUND("a.b", system="vLLM")
    for path in ("a.c", "a.x", "x.b", "a.b.c"):
        with pytest.raises(ValueError, match="was not measured"):
            FOUND(path, system="vLLM", block_size=16)
    with pytest.raises(ValueError, match="no axis"):
        FOUND("a.b", sistem="vLLM")
