"""A small figure whose numbers are known, for tests of what is made of any figure."""

from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.jobs import Job, jobs_of

TRIAL = {"workload": {"seed": 0}, "double": 1, "size": 1}


def make_figure(**changes) -> Figure:
    """Two cells, size 1 and 2, whose value is the size times `double`, plus the seed."""
    given = {
        "row": "R1",
        "figure": "small",
        "title": "A small figure",
        "ran": "two sizes",
        "runner": "simulate",
        "trial": TRIAL,
        "grid": {"size": (1, 2)},
        "seeds": (0, 1),
        "checks": (
            Check(
                name="large",
                ours=lambda found: found("value", size=2),
                paper=2,
                band=(2, 2.5),
            ),
        ),
        "planted": (
            Planted(name="twice", overrides={"double": 2}, rejected_by=("large",)),
        ),
    }
    return Figure(**(given | changes))


def value_of(job: Job) -> float:
    return job.config["size"] * job.config["double"] + job.seed


def rows_of(figure: Figure) -> dict:
    """What the runs of such a figure gave."""
    return {
        job.key: {
            "key": job.key,
            "metrics": {"value": value_of(job)},
            "error": None,
            "unavailable": None,
            "kind": "computed",
            "device": "host",
            "git": {"revision": "0123456789", "dirty": False},
            "seed": job.seed,
            "labels": job.labels,
            "planted": job.planted,
            "profile": job.profile,
            "wall_s": 0.5,
        }
        for job in jobs_of(figure)
    }
