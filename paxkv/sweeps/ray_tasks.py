"""Cells as tasks of a Ray cluster: one core each, and the rows come back to the caller.

The machines of the cluster need this package and the checkout at the same paths; their
disks may be their own. A cell whose machine is lost has failed, and is retried like others.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence

from paxkv.sweeps.cells import Job, Outcome, run_cell

LOOPBACK = "127.0.0.1"


def require_ray() -> None:
    """Raises an ImportError that says how to get Ray, if it is not there."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "--executor=ray needs ray, which is not installed: pip install 'paxkv[ray]'."
        )


def run_on_ray(
    jobs: Sequence[Job], num_workers: int, address: str | None = None
) -> Iterator[Outcome]:
    """Outcomes as the cells end.

    Args:
      num_workers: most cells at once.
      address: of a running cluster; None: starts one on this machine alone, with so many
        cores, that ends with the call.

    Raises:
      ImportError: Ray is not installed.
      ConnectionError: there is no cluster at the address.
    """
    require_ray()
    import ray
    import ray.exceptions

    if address is None:
        # Ray tells its makers of every cluster, unless this is set
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=num_workers,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address=LOOPBACK,  # nothing beyond this machine can reach it
        )
    else:
        ray.init(address=address, log_to_driver=False)
    remote_cell = ray.remote(num_cpus=1, max_retries=0)(run_cell)
    waiting = list(reversed(jobs))
    running: dict[ray.ObjectRef, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                job = waiting.pop()
                running[remote_cell.remote(job)] = job
            ended, _ = ray.wait([*running], num_returns=1)
            for reference in ended:
                yield _outcome(reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        ray.shutdown()


def _outcome(reference, job: Job) -> Outcome:
    """What the task gave. One that died with its worker has failed."""
    import ray
    import ray.exceptions

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return Outcome(cell_id=job.cell_id, wall_s=0.0, error=f"the task was lost: {error}")
