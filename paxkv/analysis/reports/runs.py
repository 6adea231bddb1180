"""Two runs to compare: found in their files, with counters on scales that compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.analysis.reports.loading import (
    load_rows,
    name_of,
    number_at,
    place_of,
    rows_files,
)
from paxkv.analysis.reports.settings import Point, points_of, settings_of
from paxkv.analysis.request_records import CAUSES, read_records
from paxkv.results import Row
from paxkv.sweeps.cells import CELLS

RECORDS_FILE = "requests.jsonl"
ROUNDED = 1e-6  # of a counter's floor: so little is an error of rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A number that tells what a run did, and what of it is too little to speak of."""

    name: str
    floor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One setting in one place: rows of its seeds, and what its requests spent."""

    label: str
    source: Path
    place: str  # kind, device, profile
    point: Point
    counters: Mapping[Counter, float | None]
    causes_s: Mapping[str, float]  # mean seconds of a request; empty: not recorded
    num_records: int


def load_runs(arguments: Sequence[str]) -> list[tuple[Run, Run]]:
    """The pairs of runs that two arguments name, one for each profile that both have.

    Args:
      arguments: PATH or PATH:NAME each; one PATH may hold both runs, and no others.

    Raises:
      ValueError: there are not two, a name is missing or unknown, or no profile is shared.
    """
    if len(arguments) == 1:
        path = Path(arguments[0])
        names = list(dict.fromkeys(name_of(row) for row in _trials(path)))
        if len(names) != 2:
            raise ValueError(
                f"{path} holds {len(names)} runs ({', '.join(names)}), --compare takes 2; "
                f"name them as {path}:NAME."
            )
        one, other = (_runs(path, name) for name in names)
    elif len(arguments) == 2:
        one, other = (_runs(*_path_and_name(argument)) for argument in arguments)
    else:
        raise ValueError(f"--compare takes two runs, {len(arguments)} are named.")
    shared = [place for place in one if place in other]
    if shared:
        return [(one[place], other[place]) for place in shared]
    if len(one) == len(other) == 1:  # in different places: compared, and said
        return list(zip(one.values(), other.values(), strict=True))
    first, second = (next(iter(runs.values())) for runs in (one, other))
    raise ValueError(
        f"{first.source}:{first.label} ran as {', '.join(one)}, {second.source}:"
        f"{second.label} as {', '.join(other)}; compare runs of one kind, device and "
        "profile."
    )


def changed_settings(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    """Key, value before and value after, of the settings that differ."""
    before, after = settings_of(one.point.rows[0]), settings_of(other.point.rows[0])
    return [
        (key, before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if key != "name" and before.get(key) != after.get(key)
    ]


def _trials(path: Path) -> list[Row]:
    return [row for row in load_rows([path]).rows if "metrics" in row]


def _path_and_name(argument: str) -> tuple[Path, str | None]:
    """Of PATH or PATH:NAME, both of which may hold colons: the longest path that exists."""
    colons = [i for i, character in enumerate(argument) if character == ":"]
    for end in (len(argument), *reversed(colons)):
        if end and Path(argument[:end]).exists():
            return Path(argument[:end]), argument[end + 1 :] or None
    before, _, name = argument.rpartition(":")
    return (Path(before), name) if before else (Path(argument), None)


def _runs(path: Path, name: str | None) -> dict[str, Run]:
    """By place: the run of that name; None: the only one."""
    rows = _trials(path)
    names = list(dict.fromkeys(name_of(row) for row in rows))
    if name is None and len(names) > 1 or name is not None and name not in names:
        raise ValueError(
            f"{path if name is None else f'{path}:{name}'} must name one run; {path} holds "
            f"{', '.join(names) or 'none'}: write {path}:NAME."
        )
    rows = [row for row in rows if name is None or name_of(row) == name]
    if not rows:
        raise ValueError(f"{path} holds no run to compare; name a file of rows.")
    places: dict[str, list[Row]] = {}
    for row in rows:
        places.setdefault(place_of(row), []).append(row)
    return {place: _run(place, some, path) for place, some in places.items()}


def _run(place: str, rows: Sequence[Row], path: Path) -> Run:
    points, _ = points_of(rows)
    if len(points) > 1:
        raise ValueError(
            f"{path} holds {len(points)} settings of {name_of(rows[0])} ({place}): "
            f"{'; '.join(point.label() for point in points[:4])}. Give them names, or "
            "report them without --compare."
        )
    [point] = points
    causes_s, num_records = _mean_causes(path, point.rows)
    return Run(
        label=name_of(rows[0]),
        source=path,
        place=place,
        point=point,
        counters=_counters(point),
        causes_s=causes_s,
        num_records=num_records,
    )


def _mean_causes(path: Path, rows: Sequence[Row]) -> tuple[dict[str, float], int]:
    """Seconds of a request by cause, of the records that are the rows': beside them or, of
    a sweep, in the folders of its cells."""
    folders = {file.parent for file in rows_files([path])}
    cells = {row["cell_id"] for row in rows if "cell_id" in row}
    folders |= {folder / CELLS / cell for folder in folders for cell in cells}
    files = {folder / RECORDS_FILE for folder in folders}
    wanted = (rows[0].get("name"), rows[0].get("profile"))
    sums, count = dict.fromkeys(CAUSES, 0.0), 0
    for file in sorted(file for file in files if file.is_file()):
        for extra, record in read_records(file):
            if (extra.get("name"), extra.get("profile")) != wanted:
                continue
            count += 1
            for causes in (record.ttft_causes_s, record.decode_causes_s):
                for cause, seconds in causes.items():
                    sums[cause] += seconds
    if not count or not any(sums.values()):
        return {}, count
    return {cause: seconds / count for cause, seconds in sums.items()}, count


def _counters(point: Point) -> dict[Counter, float | None]:
    """Means over the seeds."""
    found = {}
    for counter, value_of in _COUNTERS.items():
        values = [value for row in point.rows if (value := value_of(row)) is not None]
        mean = sum(values) / len(values) if values else None
        is_rounded = mean is not None and abs(mean) < ROUNDED * counter.floor
        found[counter] = 0.0 if is_rounded else mean
    return found


def _per(
    path: str, base: Sequence[str], scale: float | int = 1
) -> Callable[[Row], float | None]:
    """A number over the sum of others, times `scale`."""

    def value_of(row: Row) -> float | None:
        value = number_at(row, path)
        bases = [number_at(row, one) for one in base]
        known = [one for one in bases if one is not None]
        if value is None or len(known) < len(bases) or (bases and not sum(known)):
            return None
        return scale * value / (sum(known) if bases else 1.0)

    return value_of


_REQUESTS = ("metrics.num_finished",)
_COMPUTED = ("metrics.num_prefill_tokens", "metrics.num_decode_tokens")
_STEPS = ("metrics.num_steps",)
_COUNTERS: Mapping[Counter, Callable[[Row], float | None]] = {
    Counter(name="preemptions per request", floor=0.01): _per(
        "metrics.num_preemptions", _REQUESTS
    ),
    Counter(name="% of computed tokens computed again", floor=0.5): _per(
        "metrics.num_recomputed_tokens", _COMPUTED, 100
    ),
    Counter(name="% of prompt tokens found in the cache", floor=0.5): _per(
        "metrics.prefix_hit_percent", ()
    ),
    Counter(name="% of steps with a queue", floor=1.0): _per(
        "metrics.num_queue_steps", _STEPS, 100
    ),
    Counter(name="running requests, mean", floor=0.1): _per("metrics.running_mean", ()),
    Counter(name="positions held per request", floor=1.0): _per(
        "metrics.held_per_request", ()
    ),
    Counter(name="% of the pool in token states, queued", floor=1.0): _per(
        "metrics.partition_percent.token_states", ()
    ),
    Counter(name="% of the pool in rests of blocks, queued", floor=0.5): _per(
        "metrics.partition_percent.tail", ()
    ),
    Counter(name="blocks copied per request", floor=0.05): _per(
        "metrics.num_copied_blocks", _REQUESTS
    ),
    Counter(name="blocks swapped out per request", floor=0.05): _per(
        "metrics.num_swapped_out_blocks", _REQUESTS
    ),
    Counter(name="decoded tokens per step", floor=0.1): _per(
        "metrics.num_decode_tokens", _STEPS
    ),
    Counter(name="host time of a step, ms", floor=0.01): _per(
        "metrics.host_mean_s", (), 1e3
    ),
    Counter(name="device time of a step, ms", floor=0.01): _per(
        "metrics.device_mean_s", (), 1e3
    ),
    Counter(name="prefill, s per request", floor=1e-4): _per(
        "metrics.prefill_s", _REQUESTS
    ),
    Counter(name="decoding, s per request", floor=1e-4): _per(
        "metrics.decode_s", _REQUESTS
    ),
    Counter(name="swaps, s per request", floor=1e-4): _per("metrics.swap_s", _REQUESTS),
    Counter(name="communication, s per request", floor=1e-4): _per(
        "metrics.communication_s", _REQUESTS
    ),
}
