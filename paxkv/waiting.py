"""Sequences that wait for a row and blocks, some of them with their K/V on the host."""

import bisect
from collections.abc import Iterator, Sequence
from operator import attrgetter

from paxkv.samples import restart_beams
from paxkv.swapping import SwappedSequence, Swapper
from paxkv.types import Group, Request

_rank = attrgetter("rank")


class WaitingQueue:
    """By rank: who was preempted goes back to where it stood by priority and age."""

    def __init__(self, swapper: Swapper | None = None):
        """`swapper`: has the K/V of those that were swapped out."""
        self._swapper = swapper
        self._requests: list[Request] = []
        self._swapped: dict[int, tuple[list[Request], list[SwappedSequence]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __contains__(self, request: Request) -> bool:
        index = bisect.bisect_left(self._requests, request.rank, key=_rank)
        return index < len(self) and self._requests[index] is request

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        index = bisect.bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[index] is request, "the request is not waiting"
        del self._requests[index]

    def add_swapped(
        self, requests: Sequence[Request], swapped: Sequence[SwappedSequence]
    ) -> None:
        """All running sequences of a group; they come back together."""
        assert requests[0].group.request_id not in self._swapped, "swapped out twice"
        self._swapped[requests[0].group.request_id] = (list(requests), list(swapped))
        for request in requests:
            self.add(request)

    def swapped_with(
        self, request: Request
    ) -> tuple[list[Request], list[SwappedSequence]] | None:
        """The sequences that were swapped out with this one, itself among them."""
        entry = self._swapped.get(request.group.request_id)
        return entry if entry is not None and request in entry[0] else None

    def take_swapped(self, group: Group) -> list[SwappedSequence]:
        """Forgets what a group has on the host, and removes its requests; [] if nothing."""
        requests, swapped = self._swapped.pop(group.request_id, ([], []))
        for request in requests:
            self.remove(request)
        return swapped

    def forget_swapped(self, group: Group) -> list[SwappedSequence]:
        """Takes a group out that was swapped, and gives its host slots back."""
        swapped = self.take_swapped(group)
        if swapped and self._swapper is not None:
            self._swapper.forget(swapped)
        return swapped

    def return_to_queue(self, group: Group) -> None:
        """Turns swapped sequences into some whose K/V is to be computed again."""
        requests, _ = self._swapped.get(group.request_id, ([], []))
        swapped = self.forget_swapped(group)
        if group.beams is not None:
            self.add(restart_beams(group))
            return
        for request, one in zip(requests, swapped, strict=True):
            request.num_lost_tokens += one.num_computed
            self.add(request)
