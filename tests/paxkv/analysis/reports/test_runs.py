"""The two runs that arguments name are found, and nothing else is guessed."""

import pytest

from paxkv.analysis.reports.runs import Counter, changed_settings, load_runs
from tests.report_rows import trial_row, write_rows


def test_two_runs_of_one_file(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl",
        *(
            trial_row(name=name, profile=profile, seed=seed)
            for name in "ab"
            for profile in ("ideal", "calibrated")
            for seed in (0, 1)
        ),
    )
    pairs = load_runs([str(path)])
    assert [one.place for one, _ in pairs] == [
        "simulated on 1 x a100_40, ideal profile",
        "simulated on 1 x a100_40, calibrated profile",
    ]
    assert all((one.label, other.label) == ("a", "b") for one, other in pairs)
    assert all(len(run.point.rows) == 2 for pair in pairs for run in pair)
    [(one, other), _] = load_runs([f"{path}:b", f"{path}:a"])
    assert (one.label, other.label) == ("b", "a")


def test_colons_in_names_and_paths(tmp_path):
    names = ("eviction=lru", "eviction=my_file.py:UsedOnce")
    folder = tmp_path / "a:b"
    path = write_rows(folder / "rows.jsonl", *(trial_row(name=name) for name in names))
    [(one, other)] = load_runs([str(path)])
    assert (one.label, other.label) == names
    [(one, other)] = load_runs([f"{folder}:{names[1]}", f"{path}:{names[0]}"])
    assert (one.label, other.label) == (names[1], names[0])
    assert (one.source, other.source) == (folder, path)
    with pytest.raises(ValueError, match="none:a is neither a file nor a folder"):
        load_runs([f"{tmp_path}/none:a:b", f"{folder}:x"])


def test_counters_are_per_request_and_of_all_seeds(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl",
        *(trial_row(name="a", seed=seed, num_preemptions=100 * seed) for seed in (0, 1)),
        trial_row(name="b", num_finished=0),
    )
    [(one, other)] = load_runs([str(path)])
    counter = Counter(name="preemptions per request", floor=0.01)
    assert one.counters[counter] == 0.5  # of 0 and 1
    assert other.counters[counter] is None


def test_settings_that_differ(tmp_path):
    rows = [
        trial_row(name="a", config={"cache.block_size": 8, "output_folder": "x"}),
        trial_row(name="b", config={"cache.eviction": "lru", "output_folder": "y"}),
    ]
    [(one, other)] = load_runs([str(write_rows(tmp_path / "rows.jsonl", *rows))])
    assert changed_settings(one, other) == [
        ("cache.block_size", 8, 16),
        ("cache.eviction", None, "lru"),
    ]


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        ("abc", ["{}"], r"holds 3 runs \(a, b, c\), --compare takes 2"),
        ("ab", ["{}", "{}"], "must name one run"),
        ("ab", ["{}:a", "{}:x"], "rows.jsonl:x must name one run; .* holds a, b"),
        ("ab", ["{}:a"] * 3, "takes two runs, 3 are named"),
    ],
)
def test_what_does_not_name_two_runs(tmp_path, names, arguments, message):
    rows = [trial_row(name=name) for name in names]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(ValueError, match=message):
        load_runs([argument.format(path) for argument in arguments])


def test_several_settings_of_one_name_are_refused(tmp_path):
    rows = [trial_row(config={"cache.block_size": size}) for size in (8, 16)]
    path = write_rows(tmp_path / "rows.jsonl", *rows, trial_row(name="b"))
    with pytest.raises(ValueError, match=r"holds 2 settings of run .*block size 8"):
        load_runs([f"{path}:run", f"{path}:b"])


def test_no_profile_in_common(tmp_path):
    rows = [trial_row(name="a", profile=profile) for profile in ("ideal", "calibrated")]
    rows.append(trial_row(name="b", device="cpu"))
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(
        ValueError, match=r":a ran as .*:b as .* compare runs of one kind, device"
    ):
        load_runs([f"{path}:a", f"{path}:b"])
