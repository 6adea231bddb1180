"""Regions of beam searches: as many as beams, from admission on, whoever uses which."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class _Search:
    rows: list[int] = field(default_factory=list)
    spares: list[int] = field(default_factory=list)  # starts of regions without a row


class BeamRegions:
    """Per search, the rows of its beams and the regions that none of them has just now.

    A beam that is dropped leaves its region to the next that is forked, so that a search
    once admitted always has room for all of its beams.
    """

    def __init__(self):
        self._searches: dict[int, _Search] = {}  # by request id
        self._search_of: dict[int, int] = {}  # row -> request id

    def admit(self, request_id: int, row: int, spares: list[int]) -> None:
        """The first beam runs in `row`; `spares` are for those to come."""
        self._searches[request_id] = _Search(rows=[row], spares=spares)
        self._search_of[row] = request_id

    def fork(self, row: int, child: int) -> int | None:
        """The region of row `child`, whose beam comes from that of `row`; None: that is no
        beam's."""
        if row not in self._search_of:
            return None
        search = self._searches[self._search_of[row]]
        assert search.spares, "more beams than were admitted"
        search.rows.append(child)
        self._search_of[child] = self._search_of[row]
        return search.spares.pop()

    def release(self, row: int, start: int) -> list[int]:
        """The row's beam is gone; starts of the regions that nobody needs now."""
        if row not in self._search_of:
            return [start]
        request_id = self._search_of.pop(row)
        search = self._searches[request_id]
        search.rows.remove(row)
        search.spares.append(start)
        if search.rows:
            return []
        return self._searches.pop(request_id).spares

    def mates(self, row: int) -> tuple[int, ...]:
        """Rows of the same search, itself among them; () if it is no beam's."""
        if row not in self._search_of:
            return ()
        return tuple(self._searches[self._search_of[row]].rows)

    def spares(self, row: int) -> list[int]:
        """Those that count as held by this row: of each search, by its first."""
        if row not in self._search_of:
            return []
        search = self._searches[self._search_of[row]]
        return search.spares if search.rows[0] == row else []
