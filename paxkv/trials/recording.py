"""What simulated and real trials record alike."""

from collections.abc import Sequence
from typing import Any

from paxkv.analysis.run_recorder import OnRecord, OnStep, RunRecorder
from paxkv.analysis.time_split import TimeSplit
from paxkv.replay import Replay
from paxkv.trials.trial_config import TrialConfig
from paxkv.workloads.drawing import Workload
from paxkv.workloads.workload_config import offered_rate_per_s


def make_recorder(
    trial: TrialConfig,
    splits: Sequence[TimeSplit],
    on_record: OnRecord,
    on_step: OnStep = lambda metrics: None,
) -> RunRecorder:
    """A recorder of what the trial measures, with a split per replica."""
    return RunRecorder(
        splits,
        trial.slo,
        on_record,
        on_step,
        measure_from_s=trial.measure.from_s,
        measure_until_s=trial.measure.until_s,
    )


def pool_facts(
    blocks_per_group: Sequence[int], block_size: int, bytes_per_token: int
) -> dict[str, Any]:
    """A row's `pool`. Positions are the usable ones, of all cache groups."""
    usable = sum(num_blocks - 1 for num_blocks in blocks_per_group)
    return {
        "num_blocks": blocks_per_group[0],
        "blocks_per_group": tuple(blocks_per_group),
        "block_size": block_size,
        "positions": usable * block_size,
        "bytes_per_token": bytes_per_token,
    }


def served_metrics(
    trial: TrialConfig, replay: Replay, workload: Workload
) -> dict[str, Any]:
    """What was asked of a run that has ended, and how long it took on its own clock."""
    return {
        **workload.report.losses,
        "duration_s": replay.now_s,
        "offered_rate_per_s": offered_rate_per_s(trial.workload),
        "num_requests": replay.num_added,
        "num_skipped_turns": replay.feed.num_skipped,
    }
