"""Published traces, where they are: `PAXKV_TRACES` names the folder that holds them.

Counts and means are those of the files as their authors published them.
"""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from paxkv.workloads.drawing import Workload
from paxkv.workloads.traces.reading import TraceReader
from paxkv.workloads.workload_config import WorkloadConfig

FOLDER = "PAXKV_TRACES"


def path_of(name):
    folder = os.environ.get(FOLDER)
    if folder is None:
        pytest.skip(f"{FOLDER} names no folder with {name}")
    path = next(Path(folder).rglob(name), None)
    if path is None:
        pytest.skip(f"{FOLDER}={folder} has no {name}")
    return path


@pytest.mark.parametrize(
    ("name", "trace_format", "num_rows", "inputs", "outputs", "duration_s", "cv"),
    [
        (
            "AzureLLMInferenceTrace_code.csv",
            "azure",
            8_819,
            (2047.8, 1469, 7303, 7436, 7437),
            (27.9, 13, 90, 251, 1899),
            3436,
            13.2,
        ),
        (
            "AzureLLMInferenceTrace_conv.csv",
            "azure",
            19_366,
            (1154.7, 1020, 4083, 4142, 14050),
            (211.1, 129, 451, 601, 1000),
            3502,
            1.09,
        ),
        (
            "conversation_trace.jsonl",
            "mooncake",
            12_031,
            (12035, 6909, 39550, 85400, 126195),
            (343, 350, 698, 1119, 2000),
            3537,
            3.03,
        ),
        (
            "sharegpt_llama31_300_lengths.csv",
            "llmservingsim",
            300,
            (857, 732, 1749, 2765, 3998),
            (652, 632, 773, 784, 1021),
            29,
            None,
        ),
    ],
)
def test_rows_and_moments(name, trace_format, num_rows, inputs, outputs, duration_s, cv):
    reader = TraceReader(path_of(name))
    assert reader.trace_format == trace_format
    rows = list(reader)
    assert len(rows) == reader.report.num_rows == num_rows
    assert reader.report.num_malformed == 0
    lengths = np.array([(row.input_tokens, row.output_tokens) for row in rows])
    for column, expected in zip(lengths.T, (inputs, outputs), strict=True):
        found = (column.mean(), *np.percentile(column, (50, 95, 99)), column.max())
        # the table's numbers are rounded, to a tenth or to whole tokens
        assert found[0] == pytest.approx(
            expected[0], abs=0.6 if expected[0] > 300 else 0.06
        )
        assert found[1:] == pytest.approx(expected[1:], rel=0.01)
    assert rows[-1].arrival_s == pytest.approx(duration_s, abs=1)
    if cv is not None:
        gaps = np.diff([row.arrival_s for row in rows])
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.01)


def test_the_hits_of_an_infinite_cache():
    """What a cache that never evicts would find, in order of arrival."""
    rows = list(TraceReader(path_of("conversation_trace.jsonl")))
    assert _num_hits([row.hash_ids for row in rows]) == 105_710
    assert sum(len(row.hash_ids) for row in rows) == 288_500


def test_prompts_share_the_blocks_of_the_trace():
    """Tokens are compared, block by block, as a cache that never evicts would."""
    config = WorkloadConfig(
        num_requests=400,
        structure="trace",
        arrival="trace",
        trace_path=str(path_of("conversation_trace.jsonl")),
        too_long="scale",
        scale_from_tokens=131_072,
    )
    workload = Workload(config, max_context=4096, vocab_size=32_000)
    block = 512 * 4096 // 131_072
    blocks = [
        [ids[:end] for end in range(block, len(ids) + 1, block)]
        for ids in (session.turns[0].prompt_ids for session in workload)
    ]
    rows = islice(TraceReader(config.trace_path), 400)
    whole = [row.hash_ids[: row.input_tokens // 512] for row in rows]
    assert block == 16
    assert _num_hits(blocks) == _num_hits(whole) > 1_000


def _num_hits(lookups):
    """Names of prefixes that were there before, up to each request's first new one."""
    seen = set()
    num_hits = 0
    for names in lookups:
        num_hits += next(
            (i for i, name in enumerate(names) if name not in seen), len(names)
        )
        seen.update(names)
    return num_hits
