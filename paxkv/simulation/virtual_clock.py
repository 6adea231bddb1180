"""The clock of a simulated replica."""

from contextlib import AbstractContextManager, nullcontext


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self, now_s: float = 0.0):
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        self.now_s += duration_s

    def running(self) -> AbstractContextManager[None]:
        """Nothing passes by itself."""
        return nullcontext()

    def skip_to(self, time_s: float) -> None:
        """Lets idle time pass, up to `time_s` if that is still to come."""
        self.now_s = max(self.now_s, time_s)
