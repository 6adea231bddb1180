"""Each check of a figure against what its runs came to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from paxkv.reproduction.figure import Check, Figure
from paxkv.reproduction.found import Found, NotRun, Run
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
    is_rejected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A check and what it came to."""

    check: Check
    verdict: Verdict
    values: tuple[float, ...] = ()  # by seed
    why: str = ""  # there is no value, or the verdict is not what the band says
    rejections: tuple[Rejection, ...] = ()
    other_profiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

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
    wrong = [rows[job.key] for job in jobs if rows.get(job.key, {}).get("error")]
    absent = [rows[job.key] for job in jobs if rows.get(job.key, {}).get("unavailable")]
    judged = []
    for check in figure.checks:
        if check.full_only and is_quick:
            why = "the runs of --quick are too short to say"
            judged.append(Judged(check=check, verdict=Verdict.NOT_RUN, why=why))
            continue
        try:
            judged.append(_judged(figure, check, jobs, rows))
        except NotRun as why:
            if wrong:
                verdict, said = Verdict.ERROR, str(wrong[0]["error"])
            elif absent:
                verdict, said = Verdict.UNAVAILABLE, str(absent[0]["unavailable"])
            else:
                verdict, said = Verdict.NOT_RUN if is_quick else Verdict.ERROR, str(why)
            judged.append(Judged(check=check, verdict=verdict, why=said))
        except (ArithmeticError, ValueError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            judged.append(Judged(check=check, verdict=Verdict.ERROR, why=why))
    return judged


def in_band(check: Check, value: float) -> bool:
    """Ends included; nan is in none."""
    assert check.band is not None, "asked of a check without one"
    low, high = check.band
    above = -math.inf if low is None else low
    below = math.inf if high is None else high
    return above <= value <= below


def _judged(
    figure: Figure, check: Check, jobs: Sequence[Job], rows: Mapping[str, Row]
) -> Judged:
    right = [job for job in jobs if job.planted is None]

    def values(profile: str) -> tuple[float, ...]:
        of_profile = [job for job in right if job.profile == profile]
        return tuple(
            float(check.ours(_found([j for j in of_profile if j.seed == seed], rows)))
            for seed in figure.seeds
        )

    mine = values(figure.profiles[0])
    mean = sum(mine) / len(mine)
    return Judged(
        check=check,
        verdict=_verdict(check, mean),
        values=mine,
        why=check.fails_because or check.no_verdict_because or "",
        rejections=tuple(_rejections(figure, check, jobs, rows)),
        other_profiles={profile: values(profile) for profile in figure.profiles[1:]},
    )


def _verdict(check: Check, mean: float) -> Verdict:
    if check.band is None:
        return Verdict.NO_BAND
    if check.no_verdict_because is not None:
        return Verdict.NO_VERDICT
    if in_band(check, mean):
        return Verdict.UNEXPECTED_PASS if check.fails_because else Verdict.PASS
    return Verdict.EXPECTED_FAIL if check.fails_because else Verdict.FAIL


def _rejections(
    figure: Figure, check: Check, jobs: Sequence[Job], rows: Mapping[str, Row]
) -> list[Rejection]:
    """Of the planted policies that the check must reject; their cells replace the right
    ones of the same labels."""
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
            value = float(check.ours(_found([*with_it, *others], rows)))
            found.append(
                Rejection(
                    planted=planted.name,
                    value=value,
                    is_rejected=not in_band(check, value),
                )
            )
    return found


def _found(jobs: Sequence[Job], rows: Mapping[str, Row]) -> Found:
    runs = [
        Run(labels=job.labels, metrics=rows[job.key]["metrics"])
        for job in jobs
        if job.key in rows and rows[job.key]["metrics"] is not None
    ]
    return Found(runs)
