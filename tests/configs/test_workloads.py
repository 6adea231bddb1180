"""Every preset of configs/workloads is a workload that some model can be asked to serve."""

import importlib
from pathlib import Path

import pytest

from paxkv.workloads.drawing import Workload
from paxkv.workloads.workload_config import WorkloadConfig

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "workloads"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
TRACES = ("azure_code", "azure_conversation", "burstgpt", "mooncake")


def module_of(name):
    return importlib.import_module(f"configs.workloads.{name}")


def workload(name, max_context, **settings):
    config = WorkloadConfig(**module_of(name).get_config().to_dict() | settings)
    return Workload(config, max_context=max_context, vocab_size=256)


def test_all_presets_are_there():
    assert set(NAMES) == {
        *("sharegpt", "alpaca", "fixed", "lognormal"),
        *("chat", "agents", "shared_prefix", "rag"),
        *TRACES,
    }


@pytest.mark.parametrize("name", NAMES)
def test_presets_say_where_they_come_from(name):
    text = module_of(name).__doc__
    assert "ours" in text or "arXiv" in text or "https://" in text


@pytest.mark.parametrize("max_context", [256, 2048, 131_072])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in TRACES])
def test_presets_fit_in_small_and_large_models(name, max_context):
    drawn = workload(name, max_context, num_requests=10)
    for session in drawn:
        history = 0
        for turn in session.turns:
            prompt = history + len(turn.prompt_ids)
            prompt = min(prompt, session.max_prompt_tokens or prompt)
            assert prompt + turn.max_tokens <= max_context
            history += len(turn.prompt_ids) + turn.max_tokens
    assert drawn.report.num_sessions == 10


def test_the_fixed_preset_is_as_its_docstring_says():
    drawn = workload("fixed", 2048)
    lengths = {(len(s.turns[0].prompt_ids), s.turns[0].max_tokens) for s in drawn}
    assert lengths == {(512, 128)}
    assert drawn.report.num_sessions == 64 and drawn.report.num_clipped == 0


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_that_is_not_there_says_where_to_get_it(name):
    config = module_of(name).get_config()
    assert Path(config.trace_path).name in module_of(name).__doc__
    with pytest.raises(ValueError, match="configs/workloads say where to get them"):
        workload(name, 2048, trace_path=f"missing/{config.trace_path}")
