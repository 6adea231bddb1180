"""Tokens that each tenant was served, for fair scheduling."""

from collections import Counter

from paxkv.types import Request


class ServedTokens:
    """Prompt tokens that had to be computed, when a request is admitted, and outputs as
    they come."""

    def __init__(self):
        self._of_ended: Counter[str] = Counter()
        self._running: dict[int, Request] = {}  # by identity

    def admitted(self, request: Request, num_found: int) -> None:
        """`num_found` of its known tokens were in the cache."""
        num_new = request.num_tokens - num_found - len(request.output_ids)
        self._of_ended[request.options.tenant] += max(num_new, 0)
        # of a fork, the outputs so far were counted with its parent
        if num_found == request.num_tokens:
            self._of_ended[request.options.tenant] -= len(request.output_ids)
        self._running[id(request)] = request

    def ended(self, request: Request) -> None:
        if self._running.pop(id(request), None) is not None:
            self._of_ended[request.options.tenant] += len(request.output_ids)

    def of(self, tenant: str) -> int:
        generating = (
            len(request.output_ids)
            for request in self._running.values()
            if request.options.tenant == tenant
        )
        return self._of_ended[tenant] + sum(generating)
