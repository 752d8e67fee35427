"""Who is tried next. Pods of equal shape stand in one line; lines whose head does not fit are parked as a whole.

- Order: priority first, then age (creation, then first sight). Age alone decides within a priority, so none starves.
- A doomed pod costs one attempt each time something changes that could help it, and holds nobody else back.
- A pod that other pods or objects bear on (affinity, spread, host ports, volumes) stands in a line of its own, and is
  tried again when such a thing changes, with a pause that doubles from 1 s to 10 s.
- A gang stands in one line: tried, parked and woken as a whole, by the priority and the age of its first member. Members
  above its minimum stand behind all others of their priority, so that no gang grows while another one lacks its minimum.
- Where there are queues (`fair`) lines stand in lanes, one for each queue, and the order above holds within a lane; whose
  turn it is among lanes is for `Fair` to say, by the first pod of each that may be tried. Lines are parked, never lanes.
- A pod whose Binding was refused pauses likewise, and from then on in a line of its own: the others of its shape go on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import msgspec

from services.placement.scheduling.fair.fair import Fair
from shared.book.states import PodState
from shared.queues.amounts import Amount
from shared.queues.tree import Offer

PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 10.0
_AFTER_ALL_TIMES = "~"
"""Sorts behind any digit."""

Entry = tuple[int, str, int, str]
"""Priority, highest first; creation; arrival; uid."""


class Line:
    """Pods of one shape, best first. `parked`: its head did not fit, and nothing has changed since that could help."""

    def __init__(self, key: bytes, plain: bool, lane: str) -> None:
        self.key, self.plain, self.lane = key, plain, lane
        self.members: list[Entry] = []
        self.parked = False

    @property
    def head(self) -> Entry:
        return self.members[0]


class Pause(msgspec.Struct):
    until: float
    seconds: float


class Queue:
    def __init__(self, fair: Fair | None = None, amount_of: Callable[[str], Amount] | None = None) -> None:
        """`amount_of` says what the pod (by uid) takes that heads a line, or its gang."""
        self.lines: dict[bytes, Line] = {}
        self._fair, self._amount_of = fair, amount_of
        self._line_of: dict[str, Line] = {}
        self._heads: dict[str, list[tuple[Entry, bytes]]] = {}
        """By lane: heads of lines that may be tried, and old words about lines that have moved on."""
        self._stirred: set[str] = set()
        """Lanes whose first pod may be another one by now."""
        self._resumes: list[tuple[float, str]] = []
        self._resume_at: dict[str, float] = {}
        """When lanes are to be looked at again because a pause ends."""
        self._pauses: dict[str, Pause] = {}
        self._arrivals = 0
        self._arrival: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._line_of

    def add(self, state: PodState, key: bytes, *, plain: bool) -> None:
        """Puts a pod in its line, or in another where its shape has changed. A line that waits goes on waiting: the
        newcomer is of the same shape, and behind or before the others it fits no better."""
        plain = plain and state.uid not in self._pauses
        lane = "" if self._fair is None else self._fair.lane_of(state)
        if lane and self._fair is not None:
            key = b"%s %d %s" % (lane.encode(), self._fair.is_firm(state), key)
        self._put(state, key if plain else key + state.uid.encode(), lane, plain=plain)

    def add_to_gang(self, state: PodState, gang: str, *, spare: bool = False) -> None:
        """Puts a pod in the line of its gang, named by `gang`; such a line pauses only where it is told to. `spare`: the gang
        has all that it needs, and this pod stands behind all others of its priority."""
        lane = "" if self._fair is None else self._fair.lane_of(state)
        self._put(state, (b"spare " if spare else b"gang ") + gang.encode(), lane, plain=True, spare=spare)

    def _put(self, state: PodState, line_key: bytes, lane: str, *, plain: bool, spare: bool = False) -> None:
        known = self._line_of.get(state.uid)
        if known is not None:
            if known.key == line_key:
                return
            self.remove(state.uid)
        line = self.lines.get(line_key)
        if line is None:
            line = self.lines[line_key] = Line(line_key, plain, lane)
        if state.uid not in self._arrival:
            self._arrivals += 1
            self._arrival[state.uid] = self._arrivals
        created = state.pod.metadata.creation_timestamp
        entry = (
            -state.pod.spec.priority,
            f"{_AFTER_ALL_TIMES}{created}" if spare else created,
            self._arrival[state.uid],
            state.uid,
        )
        heapq.heappush(line.members, entry)
        self._line_of[state.uid] = line
        if not line.parked and line.head == entry:
            self._push_head(line)

    def remove(self, uid: str, *, forget: bool = False) -> None:
        """Takes a pod out. `forget` also drops its place by age, for a pod that will not come back."""
        line = self._line_of.pop(uid, None)
        if forget:
            self._arrival.pop(uid, None)
            self._pauses.pop(uid, None)
        if line is None:
            return
        was_head = line.head[3] == uid
        line.members = [m for m in line.members if m[3] != uid] if not was_head else line.members
        if was_head:
            heapq.heappop(line.members)
        else:
            heapq.heapify(line.members)
        if not line.members:
            del self.lines[line.key]
        elif was_head and not line.parked:
            self._push_head(line)
        self._stir(line)

    def next(self, now: float) -> str | None:
        """The uid to try now; it stays in its line until `remove` or `park`."""
        if self._fair is None or self._fair.tree is None:
            first = self._first("", now)
            return None if first is None else first[3]
        while self._resumes and self._resumes[0][0] <= now:
            _, lane = heapq.heappop(self._resumes)
            self._resume_at.pop(lane, None)
            self._stirred.add(lane)
        for lane in self._stirred:
            first = self._first(lane, now)
            self._fair.put_offer(lane, None if first is None else Offer(first[:3], first[3], self._amount(first[3])))
        self._stirred.clear()
        offer = self._fair.next()
        return None if offer is None else offer.uid

    def _first(self, lane: str, now: float) -> Entry | None:
        """The first of a lane that is neither parked nor paused."""
        later = []
        found = None
        heads = self._heads.get(lane, [])
        while heads:
            entry, key = heads[0]
            line = self.lines.get(key)
            if line is None or line.parked or not line.members or line.head != entry:
                heapq.heappop(heads)  # a stale heap entry
                continue
            pause = self._pauses.get(entry[3])
            if pause is not None and pause.until > now:
                later.append(heapq.heappop(heads))
                if lane and pause.until < self._resume_at.get(lane, math.inf):
                    self._resume_at[lane] = pause.until
                    heapq.heappush(self._resumes, (pause.until, lane))
                continue
            found = entry
            break
        for item in later:
            heapq.heappush(heads, item)
        return found

    def _push_head(self, line: Line) -> None:
        heapq.heappush(self._heads.setdefault(line.lane, []), (line.head, line.key))
        self._stir(line)

    def _stir(self, line: Line) -> None:
        if line.lane:
            self._stirred.add(line.lane)

    def _amount(self, uid: str) -> Amount:
        return Amount() if self._amount_of is None else self._amount_of(uid)

    def leave(self) -> list[str]:
        """All pods leave their lines, to be added anew: lanes are about to change. Ages and pauses stay. Returns the pods
        in the order in which they came."""
        uids = [member[3] for line in self.lines.values() for member in line.members]
        uids.sort(key=lambda uid: self._arrival[uid])
        self.lines, self._line_of, self._heads = {}, {}, {}
        self._resumes, self._resume_at, self._stirred = [], {}, set()
        return uids

    def park(self, uid: str, now: float, *, pause_s: float = 0.0) -> None:
        """It does not fit now: its whole line waits for a change. A line of one pod pauses as well, longer each time, or
        for `pause_s` where that is given: it waits for something that it has been promised."""
        line = self._line_of[uid]
        line.parked = True
        self._stir(line)
        if pause_s:
            self.pause_for(uid, now, pause_s)
        elif not line.plain:
            self.pause(uid, now)

    def unpark(self, uid: str) -> None:
        """Its line may be tried (again)."""
        line = self._line_of[uid]
        if line.parked:
            line.parked = False
            self._push_head(line)

    def in_line_with(self, uid: str) -> list[str]:
        """All pods of its line, best first."""
        return [member[3] for member in sorted(self._line_of[uid].members)]

    def parked_with(self, uid: str) -> list[str]:
        """The pods that wait in its line; empty where the line does not wait, or the pod stands in none."""
        line = self._line_of.get(uid)
        return [member[3] for member in line.members] if line is not None and line.parked else []

    def waits(self, uid: str) -> bool:
        """Whether its line is parked."""
        line = self._line_of.get(uid)
        return line is not None and line.parked

    def paused(self, uid: str, now: float) -> bool:
        pause = self._pauses.get(uid)
        return pause is not None and pause.until > now

    def pause_for(self, uid: str, now: float, seconds: float) -> None:
        """Not tried for so long, whether it stands in a line now or comes back to one."""
        self._pauses[uid] = Pause(now + seconds, PAUSE_FIRST_S / 2)
        self._stir_pod(uid)

    def pause(self, uid: str, now: float) -> None:
        known = self._pauses.get(uid)
        seconds = min(PAUSE_MOST_S, known.seconds * 2 if known else PAUSE_FIRST_S)
        self._pauses[uid] = Pause(now + seconds, seconds)
        self._stir_pod(uid)

    def _stir_pod(self, uid: str) -> None:
        line = self._line_of.get(uid)
        if line is not None:
            self._stir(line)

    def wake(self, helps: Callable[[str], bool]) -> int:
        """Wakes the parked lines whose head (a uid) `helps` speaks for; returns how many."""
        woken = 0
        for line in self.lines.values():
            if line.parked and helps(line.head[3]):
                line.parked = False
                self._push_head(line)
                woken += 1
        return woken

    def waiting_by_lane(self) -> dict[str, int]:
        """How many pods wait, by the queue that they stand in."""
        counts: dict[str, int] = {}
        for line in self.lines.values():
            counts[line.lane] = counts.get(line.lane, 0) + len(line.members)
        return counts

    def next_pause_end(self) -> float | None:
        """When the first paused pod may be tried again."""
        return min(
            (p.until for uid, p in self._pauses.items() if uid in self._line_of and not self._line_of[uid].parked),
            default=None,
        )

    def ahead_of(self, uid: str) -> int:
        """How many waiting pods of its queue stand before it by priority and age."""
        line = self._line_of.get(uid)
        if line is None:
            return 0
        entry = next(m for m in line.members if m[3] == uid)
        return sum(1 for other in self.lines.values() if other.lane == line.lane for m in other.members if m < entry)

    def oldest(self, limit: int) -> list[str]:
        return [m[3] for m in heapq.nsmallest(limit, (m for line in self.lines.values() for m in line.members))]
