"""Settings of every test: hypothesis profiles, and skips of what needs a device."""

import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

DEVICE_MARKERS = ("gpu", "tpu")

# A clock must not decide whether a test passes; in CI, neither must luck.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(autouse=True, scope="module")
def give_programs_back() -> Iterator[None]:
    """Each compiled program holds memory maps, of which Linux gives a process 65,530: the
    compiler crashes when thousands of programs have used them up."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` or `tpu` where jax runs on something else."""
    wanted = [item for item in items if _device_of(item) is not None]
    if not wanted:
        return
    import jax  # only now: most test files of the host core never load it

    backend = jax.default_backend()
    for item in wanted:
        device = _device_of(item)
        if device != backend:
            item.add_marker(
                pytest.mark.skip(reason=f"needs a {device}, jax has a {backend}")
            )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests of each device did not run."""
    skipped = Counter(
        marker
        for report in terminalreporter.getreports("skipped")
        for marker in DEVICE_MARKERS
        if marker in report.keywords
    )
    for device in DEVICE_MARKERS:
        terminalreporter.write_line(
            f"tests skipped for want of a {device}: {skipped[device]}"
        )


def _device_of(item: pytest.Item) -> str | None:
    return next((name for name in DEVICE_MARKERS if item.get_closest_marker(name)), None)


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="run the full product of the differential harness (hours)",
    )
    parser.addoption(
        "--operations",
        type=int,
        default=4_000,
        help="random operations that the state machine tries",
    )
    parser.addoption(
        "--random-cases",
        type=int,
        default=200,
        help="random combinations that the differential harness tries",
    )
