"""Each check of a figure against what its runs came to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from paxkv.reproduction.figure import Check, Figure
from paxkv.reproduction.found import Found, NotRun, Run, has_labels
from paxkv.reproduction.jobs import Job
from paxkv.results import Row


class Verdict(Enum):
    """What a check came to; the value is how it is shown."""

    PASS = "PASS"
    FAIL = "FAIL"
    EXPECTED_FAIL = "FAIL, expected"
    UNEXPECTED_PASS = "PASS, not expected"
    NO_BAND = "no band"
    NO_VERDICT = "no verdict"
    NOT_RUN = "not run"
    UNAVAILABLE = "not available"
    ERROR = "ERROR"


UNEXPECTED = frozenset({Verdict.FAIL, Verdict.UNEXPECTED_PASS, Verdict.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What a planted wrong policy gives, and whether the band keeps it out."""

    planted: str
    value: float
    is_rejected: bool  # nothing at all (nan) is no rejection
    # without it the same seed is in the band: otherwise a rejection shows nothing
    is_telling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A check and what it came to."""

    check: Check
    verdict: Verdict
    values: tuple[float, ...] = ()  # by seed
    why: str = ""  # there is no value, or the verdict is not what the band says
    rejections: tuple[Rejection, ...] = ()
    other_profiles: Mapping[str, float] = field(default_factory=dict)  # the first seed's

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def is_unexpected(self) -> bool:
        """Whether the program should end with an error because of it."""
        return self.verdict in UNEXPECTED or not all(r.is_rejected for r in self.rejections)


def judge(
    figure: Figure, jobs: Sequence[Job], rows: Mapping[str, Row], mode: str
) -> list[Judged]:
    """All checks of a figure.

    Args:
      figure: as `as_mode` has it in this mode, with the jobs of `jobs_of`.
      rows: by the jobs' keys.
    """
    is_quick = mode == "quick"
    judged = []
    for check in figure.checks:
        if check.full_only and is_quick:
            why = "the runs of --quick are too short to say"
            judged.append(Judged(check=check, verdict=Verdict.NOT_RUN, why=why))
            continue
        try:
            judged.append(_judged(figure, check, jobs, rows, mode))
        except NotRun as missed:
            verdict, why = _why_not_run(missed, jobs, rows, is_quick=is_quick)
            judged.append(Judged(check=check, verdict=verdict, why=why))
        except (ArithmeticError, ValueError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            judged.append(Judged(check=check, verdict=Verdict.ERROR, why=why))
    return judged


def _why_not_run(
    missed: NotRun, jobs: Sequence[Job], rows: Mapping[str, Row], *, is_quick: bool
) -> tuple[Verdict, str]:
    """By what the runs of the cells that were asked for came to."""
    asked = [job for job in jobs if has_labels(job.labels, missed.labels)]
    for cause, verdict in (("error", Verdict.ERROR), ("unavailable", Verdict.UNAVAILABLE)):
        for job in asked:
            if said := rows.get(job.key, {}).get(cause):
                return verdict, str(said)
    return Verdict.NOT_RUN if is_quick else Verdict.ERROR, str(missed)


def in_band(check: Check, value: float) -> bool:
    """Ends included; nan is in none."""
    assert check.band is not None, "asked of a check without one"
    low, high = check.band
    above = -math.inf if low is None else low
    below = math.inf if high is None else high
    return above <= value <= below


def _judged(
    figure: Figure, check: Check, jobs: Sequence[Job], rows: Mapping[str, Row], mode: str
) -> Judged:
    right = [job for job in jobs if job.planted is None]

    def value(profile: str, seed: int) -> float:
        some = [job for job in right if (job.profile, job.seed) == (profile, seed)]
        return float(check.ours(found_of(some, rows)))

    first, *others = figure.profiles
    mine = tuple(value(first, seed) for seed in figure.seeds)
    mean = sum(mine) / len(mine)
    return Judged(
        check=check,
        verdict=_verdict(check, mean, mode),
        values=mine,
        why=check.fails_because or check.no_verdict_because or "",
        rejections=tuple(_rejections(figure, check, jobs, rows, mine[0])),
        other_profiles={profile: value(profile, figure.seeds[0]) for profile in others},
    )


def _verdict(check: Check, mean: float, mode: str) -> Verdict:
    if check.band is None:
        return Verdict.NO_BAND
    if check.no_verdict_because is not None:
        return Verdict.NO_VERDICT
    if in_band(check, mean):  # the reason to fail is that of the full runs
        is_surprise = check.fails_because is not None and mode == "full"
        return Verdict.UNEXPECTED_PASS if is_surprise else Verdict.PASS
    return Verdict.EXPECTED_FAIL if check.fails_because else Verdict.FAIL


def _rejections(
    figure: Figure,
    check: Check,
    jobs: Sequence[Job],
    rows: Mapping[str, Row],
    right_value: float,
) -> list[Rejection]:
    """Of the planted policies that the check must reject; their cells replace the right
    ones of the same labels.

    Args:
      right_value: of the same seed, without them.
    """
    first = [
        job
        for job in jobs
        if job.seed == figure.seeds[0] and job.profile == figure.profiles[0]
    ]
    found = []
    for planted in figure.planted:
        if check.name in planted.rejected_by:
            with_it = [job for job in first if job.planted == planted.name]
            changed = [job.labels for job in with_it]
            others = [j for j in first if j.planted is None and j.labels not in changed]
            value = float(check.ours(found_of([*with_it, *others], rows)))
            found.append(
                Rejection(
                    planted=planted.name,
                    value=value,
                    is_rejected=not (math.isnan(value) or in_band(check, value)),
                    is_telling=in_band(check, right_value),
                )
            )
    return found


def found_of(jobs: Sequence[Job], rows: Mapping[str, Row]) -> Found:
    """What checks read of the jobs that gave metrics."""
    runs = [
        Run(labels=job.labels, metrics=rows[job.key]["metrics"])
        for job in jobs
        if job.key in rows and rows[job.key]["metrics"] is not None
    ]
    return Found(runs)
