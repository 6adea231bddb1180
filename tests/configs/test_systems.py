"""Each preset of a system makes valid settings, and serves requests under pressure."""

import importlib
from pathlib import Path

import pytest

from configs.systems import trtllm_no_evict
from paxkv.config import CacheConfig, SchedulerConfig
from tests.fakes import fake_completion, make_engine, make_request, make_scheduler
from tests.scheduling import step

FOLDER = Path(__file__).parents[2] / "configs" / "systems"
SYSTEMS = sorted(path.stem for path in FOLDER.glob("*.py"))
MAX_CONTEXT = 64


def module_of(name):
    return importlib.import_module(f"configs.systems.{name}")


def settings_of(name) -> dict:
    preset = module_of(name).get_config()
    return {**preset.cache.to_dict(), **preset.scheduler.to_dict()}


def test_there_is_a_preset_for_each_system_of_the_comparison():
    assert SYSTEMS == [
        "contiguous_max",
        "faster_transformer",
        "orca_max",
        "orca_oracle",
        "orca_pow2",
        "sglang",
        "trtllm_max_utilization",
        "trtllm_no_evict",
        "vllm_2023",
        "vllm_v1",
    ]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_preset_says_what_it_is_and_keeps_to_the_fields(name):
    doc = " ".join((module_of(name).__doc__ or "").split())
    for part in ("re-implementation of", "Source: ", "Modelled: ", "Not modelled: "):
        assert part in doc, part
    preset = module_of(name).get_config()
    assert set(preset) == {"cache", "scheduler"}
    cache, scheduler = CacheConfig(**preset.cache), SchedulerConfig(**preset.scheduler)
    for tree, made in ((preset.cache, cache), (preset.scheduler, scheduler)):
        for field, value in tree.items():
            assert getattr(made, field) == value, field


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_preset_serves_the_same_tokens_in_a_full_pool(name):
    settings = settings_of(name) | {"block_size": 4, "max_num_seqs": 8}
    engine = make_engine(**settings, num_blocks=33, max_context=MAX_CONTEXT)
    tokens = {}
    for index in range(12):
        prompt = (*range(1, 10), *range(index + 20, index + 30))
        sampling = make_request(1, 5 + 9 * (index % 3)).sampling
        request = engine.add(prompt, sampling)
        tokens[request] = (prompt, sampling.max_tokens, [])
    most_at_once = 0
    while engine.has_unfinished:
        outcome = engine.step()
        if outcome.metrics is not None:
            most_at_once = max(most_at_once, outcome.metrics.num_running)
        for update in outcome.updates:
            tokens[update.request_id][2].extend(update.new_token_ids)
    for prompt, max_tokens, generated in tokens.values():
        assert tuple(generated) == fake_completion(prompt, max_tokens)
    regions = {"contiguous_max": 2, "orca_max": 2, "faster_transformer": 2}
    assert most_at_once == regions.get(name, most_at_once) >= 2
    preempts = {"vllm_v1", "vllm_2023", "trtllm_max_utilization", "sglang"}
    assert (engine.scheduler.num_preemptions > 0) <= (name in preempts)


def test_guaranteed_no_evict_never_preempts_where_max_utilization_does():
    counts = {}
    for name in ("trtllm_no_evict", "trtllm_max_utilization"):
        settings = settings_of(name) | {"block_size": 4, "max_num_seqs": 8}
        engine = make_engine(**settings, num_blocks=17, max_context=MAX_CONTEXT)
        for start in range(5):
            prompt = tuple(range(start * 20, start * 20 + 8))
            engine.add(prompt, make_request(1, 20).sampling)
        while engine.has_unfinished:
            engine.step()
        counts[name] = engine.scheduler.num_preemptions
    assert counts["trtllm_no_evict"] == 0 < counts["trtllm_max_utilization"]


def test_presets_are_new_trees_each_time():
    trtllm_no_evict.get_config().scheduler.watermark = 0.5
    assert trtllm_no_evict.get_config().scheduler.watermark == 0.0


@pytest.mark.parametrize("name", ["orca_max", "faster_transformer"])
def test_orca_max_has_the_papers_numbers_on_opt_13b(name):
    """EVAL 1.1, 1.3 and 1.6: of 983 blocks it runs 7 sequences of 2,048 tokens, and 8.9 %
    of the positions are left over."""
    settings = settings_of(name)
    scheduler = make_scheduler(**settings, num_blocks=984, max_context=2048)
    for index in range(9):
        assert scheduler.add(make_request(161, 338, request_id=index)) == []
    while len(scheduler.running) < 7:
        plan = step(scheduler)
    plan = step(scheduler)
    assert (plan.num_running, plan.num_waiting) == (7, 2)
    (partition,) = plan.partitions
    assert partition.total == 15_728
    left_over = partition.free + partition.rounding
    assert left_over == 15_728 - 7 * 2_048
    assert round(100 * left_over / partition.total, 1) == 8.9
