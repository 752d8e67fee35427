"""Which pod is tried next. Pods of one shape form an equivalence group, which is tried and set aside as a whole.

- Order: priority first, then age (creation, then first sight). Within a priority age alone decides, so no pod starves.
- A pod that cannot fit costs one attempt each time something changes that could help it, and delays no other group.
- A pod whose fit depends on other pods or objects (affinity, spread, host ports, volumes) is a group of its own. It is
  tried again when such an object changes, after a pause that doubles from 1 s to 10 s.
- A gang is one group. Its place follows from the priority and the age of its first member. Members above its minimum
  come after all other pods of their priority, so that no gang grows while another one is below its minimum.
- With queues (`fair`) the order above holds within each queue. `Fair` chooses between queues, by the first pod of each
  that may be tried.
- A pod whose Binding was refused pauses likewise, and is a group of its own from then on: the others of its shape go
  on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterator

from services.placement.scheduling.equivalence_group import Entry, EquivalenceGroup
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.fair.group_requests import GroupRequests
from services.placement.scheduling.pauses import Pauses
from shared.book.states import PodState
from shared.queues.amounts import Amount
from shared.queues.tree import Offer

_AFTER_ALL_TIMES = "~"
"""Sorts behind any digit."""


class Queue:
    def __init__(self, fair: Fair | None = None, requests: GroupRequests | None = None) -> None:
        """`requests`: what groups request; needed where there are queues."""
        self.groups: dict[bytes, EquivalenceGroup] = {}
        self._fair, self._requests = fair, requests
        self._group_of: dict[str, EquivalenceGroup] = {}
        self._entry_of: dict[str, Entry] = {}
        self._heads: dict[str, list[tuple[Entry, bytes]]] = {}
        """By queue: heads of groups that may be tried, and stale entries."""
        self._later: dict[str, list[tuple[float, Entry, bytes]]] = {}
        """By queue: heads that were paused when it was their turn, by the end of that pause."""
        self._dirty: set[str] = set()
        """Queues whose first pod may have changed."""
        self._resumes: list[tuple[float, str]] = []
        self._resume_at: dict[str, float] = {}
        """By queue: when its first pause ends."""
        self._pauses = Pauses()
        self._arrivals = 0
        self._arrival: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_of

    def __iter__(self) -> Iterator[str]:
        """The uids of all pods, in no order."""
        return iter(self._group_of)

    @property
    def arrivals(self) -> int:
        """How many pods have been put in so far."""
        return self._arrivals

    def add(self, state: PodState, key: bytes, *, plain: bool) -> None:
        """Puts a pod in the group `key`, or moves it there after its shape has changed. An unschedulable group stays
        so: a pod of the same shape fits no better."""
        plain = plain and state.uid not in self._pauses
        queue = "" if self._fair is None else self._fair.queue_of(state)
        if queue and self._fair is not None:
            key = b"%s %d %s" % (queue.encode(), self._fair.is_non_borrowing(state), key)
        self._put(state, key if plain else key + state.uid.encode(), queue, plain=plain)

    def add_to_gang(self, state: PodState, gang: str, *, spare: bool = False) -> None:
        """Puts a pod in the group of its gang, which pauses only when `pause_for` says so. `spare`: the gang has its
        minimum without this pod, which comes after all other pods of its priority."""
        queue = "" if self._fair is None else self._fair.queue_of(state)
        self._put(state, (b"spare " if spare else b"gang ") + gang.encode(), queue, plain=True, spare=spare)

    def _put(self, state: PodState, group_key: bytes, queue: str, *, plain: bool, spare: bool = False) -> None:
        known = self._group_of.get(state.uid)
        if known is not None:
            if known.key == group_key:
                self._move(known, state.uid, queue)
                return
            self.remove(state.uid)
        group = self.groups.get(group_key)
        if group is None:
            group = self.groups[group_key] = EquivalenceGroup(group_key, plain, queue)
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
        group.add(entry)
        self._move(group, state.uid, queue)
        self._group_of[state.uid], self._entry_of[state.uid] = group, entry
        if not group.unschedulable and group.head == entry:
            self._push_head(group)

    def _move(self, group: EquivalenceGroup, uid: str, queue: str) -> None:
        """A gang is in the queue of its head. Where that has changed it is tried again: what kept it in the other queue
        need not hold in this one."""
        if group.queue == queue or group.head[3] != uid:
            return
        self._mark_dirty(group)
        group.queue, group.unschedulable = queue, False
        self._push_head(group)

    def remove(self, uid: str, *, forget: bool = False) -> None:
        """Takes a pod out. `forget` also drops its place by age, for a pod that will not come back."""
        group = self._group_of.pop(uid, None)
        if forget:
            self._arrival.pop(uid, None)
            self._pauses.forget(uid)
        if group is None:
            return
        del self._entry_of[uid]
        was_head = group.head[3] == uid
        group.take_out(uid)
        if not len(group):
            del self.groups[group.key]
        elif was_head and not group.unschedulable:
            self._push_head(group)
        self._mark_dirty(group)

    def next(self, now: float) -> str | None:
        """The uid to try now. It stays in its group until `remove` or `mark_unschedulable`."""
        if self._fair is None or self._fair.tree is None:
            first = self._first("", now)
            return None if first is None else first[3]
        while self._resumes and self._resumes[0][0] <= now:
            _, queue = heapq.heappop(self._resumes)
            self._resume_at.pop(queue, None)
            self._dirty.add(queue)
        for queue in self._dirty:
            first = self._first(queue, now)
            self._fair.put_offer(queue, None if first is None else Offer(first[:3], first[3], self._amount(first[3])))
        self._dirty.clear()
        offer = self._fair.next()
        return None if offer is None else offer.uid

    def _first(self, queue: str, now: float) -> Entry | None:
        """The first pod of a queue that is neither unschedulable nor paused."""
        heads, later = self._heads.get(queue, []), self._later.setdefault(queue, [])
        while later and later[0][0] <= now:
            heapq.heappush(heads, heapq.heappop(later)[1:])
        found = None
        while heads and found is None:
            entry, key = heads[0]
            group = self.groups.get(key)
            if group is None or group.unschedulable or group.queue != queue or group.head != entry:
                heapq.heappop(heads)  # a stale heap entry
            elif (paused_until := self._pauses.until(entry[3])) > now:
                heapq.heappush(later, (paused_until, *heapq.heappop(heads)))
            else:
                found = entry
        if not heads and not later:  # perhaps of a namespace that is gone
            self._heads.pop(queue, None)
            self._later.pop(queue, None)
        if queue and later and later[0][0] < self._resume_at.get(queue, math.inf):
            self._resume_at[queue] = later[0][0]
            heapq.heappush(self._resumes, (later[0][0], queue))
        return found

    def _push_head(self, group: EquivalenceGroup) -> None:
        heapq.heappush(self._heads.setdefault(group.queue, []), (group.head, group.key))
        self._mark_dirty(group)

    def _mark_dirty(self, group: EquivalenceGroup) -> None:
        if group.queue:
            self._dirty.add(group.queue)

    def _amount(self, uid: str) -> Amount:
        return Amount() if self._requests is None else self._requests.least(uid)

    def leave(self) -> list[str]:
        """Removes all pods, to be added again after the queues have changed. Ages and pauses stay. Returns the uids in
        order of arrival."""
        uids = [member[3] for group in self.groups.values() for member in group.members]
        uids.sort(key=lambda uid: self._arrival[uid])
        self.groups, self._group_of, self._entry_of, self._heads, self._later = {}, {}, {}, {}, {}
        self._resumes, self._resume_at, self._dirty = [], {}, set()
        return uids

    def mark_unschedulable(self, uid: str, now: float, *, pause_s: float = 0.0) -> None:
        """The pod does not fit: its group waits for a change. A group of one pod pauses as well, longer each time, or
        for `pause_s` where what it waits for is already on its way."""
        group = self._group_of[uid]
        group.unschedulable = True
        self._mark_dirty(group)
        if pause_s:
            self.pause_for(uid, now, pause_s)
        elif not group.plain:
            self.pause(uid, now)

    def mark_schedulable(self, uid: str) -> None:
        """Its group may be tried again."""
        group = self._group_of[uid]
        if group.unschedulable:
            group.unschedulable = False
            self._push_head(group)

    def group_with(self, uid: str) -> list[str]:
        """All pods of its group, best first."""
        return [member[3] for member in sorted(self._group_of[uid].members)]

    def take_new(self, uid: str) -> list[str]:
        """The pods that have come to its group since this was last asked."""
        group = self._group_of.get(uid)
        return [] if group is None else group.take_new()

    def is_unschedulable(self, uid: str) -> bool:
        """Whether its group waits for a change."""
        group = self._group_of.get(uid)
        return group is not None and group.unschedulable

    def paused(self, uid: str, now: float) -> bool:
        return self._pauses.until(uid) > now

    def pause_for(self, uid: str, now: float, seconds: float) -> None:
        """The pod is not tried for so long, even if it is removed and added again."""
        before = self._pauses.until(uid)
        self._pauses.pause_for(uid, now, seconds)
        self._pause_changed(uid, before)

    def pause(self, uid: str, now: float) -> None:
        """The pod is not tried for a while, longer each time."""
        before = self._pauses.until(uid)
        self._pauses.pause(uid, now)
        self._pause_changed(uid, before)

    def _pause_changed(self, uid: str, before: float) -> None:
        group = self._group_of.get(uid)
        if group is None:
            return
        self._mark_dirty(group)
        if self._pauses.until(uid) < before and group.head[3] == uid and not group.unschedulable:
            self._push_head(group)  # it may be set aside until the end of the longer pause

    def wake(self, helps: Callable[[str], bool], *, in_order: bool = False) -> int:
        """Makes those unschedulable groups schedulable whose head (a uid) `helps` accepts; returns how many.

        `in_order`: `helps` is asked of the most important pods first."""
        woken = 0
        for group in sorted(self.groups.values(), key=_head_of) if in_order else self.groups.values():
            if group.unschedulable and helps(group.head[3]):
                group.unschedulable = False
                self._push_head(group)
                woken += 1
        return woken

    def waiting_by_queue(self) -> dict[str, int]:
        """How many pods wait, by queue."""
        counts: dict[str, int] = {}
        for group in self.groups.values():
            counts[group.queue] = counts.get(group.queue, 0) + len(group)
        return counts

    def next_pause_end(self) -> float | None:
        """When the first paused pod may be tried again."""
        return self._pauses.first_end(lambda uid: uid in self._group_of and not self._group_of[uid].unschedulable)

    def ahead_of(self, uid: str) -> int:
        """How many waiting pods of its queue come before it by priority and age."""
        group = self._group_of.get(uid)
        if group is None:
            return 0
        entry = self._entry_of[uid]
        return sum(
            1 for other in self.groups.values() if other.queue == group.queue for m in other.members if m < entry
        )

    def entry_of(self, uid: str) -> Entry | None:
        """The pod's place in the order of its queue; None if it does not wait."""
        return self._entry_of.get(uid)

    def first_with(self, uid: str) -> str:
        """The first pod of its group: of a gang the member whose place in the order all of them have."""
        group = self._group_of.get(uid)
        return uid if group is None else group.head[3]

    def first_waiting(self, now: float, count: int, also: Container[str] = ()) -> Iterator[tuple[str, Entry]]:
        """The first pods, `count` at most, of each group that did not fit when it was last tried, with their queue, in
        no order. `also`: heads of other groups."""
        for group in self.groups.values():
            uid = group.head[3]
            if group.unschedulable or self._pauses.until(uid) > now or uid in also:
                for entry in (group.head,) if count == 1 else heapq.nsmallest(count, group.members):
                    yield group.queue, entry

    def oldest(self, limit: int) -> list[str]:
        return [m[3] for m in heapq.nsmallest(limit, (m for group in self.groups.values() for m in group.members))]


def _head_of(group: EquivalenceGroup) -> Entry:
    return group.head
