"""Reserves capacity for the head of the queue, and keeps less important pods off it (EASY backfilling).

A pod or gang that has waited for long and does not fit gets places that it waits for: the soonest ones by the ends of
other pods. A pod that comes after it in the order of the queue is tried on a book on which these places are booked, so
that it fits beside them or not at all, unless it ends before they are needed. All others, the head of the queue itself
among them, are tried on the book without them.

The places are booked only while less important pods are tried (`show_to`), and never between two inputs. Nothing else
sees them, no log has them, and a new leader chooses anew: a lost reservation costs time, and no property of the
protocol depends on one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cmp_to_key
from itertools import islice

import msgspec

from services.placement.config import Config
from services.placement.engine.engine import Engine
from services.placement.scheduling.backfill.choosing import choose, is_within, lift
from services.placement.scheduling.backfill.ends import end_of
from services.placement.scheduling.equivalence_group import Entry
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.fair.group_requests import GroupRequests
from services.placement.scheduling.grants import TrialGrants
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.trial import Trial
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.preemption import HeldPlace
from shared.model.grant import sum_shares
from shared.model.life import STUCK_S, grace_s
from shared.model.units import WHOLE_GPU_MILLI
from shared.queues.amounts import part_of
from shared.queues.tree import Offer

LOOK_S = 2.0
"""How often it is decided for which pods capacity is reserved, and whether they would still fit there."""
START_S = 60.0
"""How long a pod may take from its Binding to its start, for one that has to end before a reservation is needed."""
_CANDIDATES_MOST = 8
_VAIN_MOST = 4
"""For how many at most no places are found in one look: each search may cost a second on a large cluster."""
_AGAIN_FIRST_S, _AGAIN_MOST_S = 10.0, 60.0
"""For how long no places are looked for again where none were found; doubled each time."""
_LATER_S = 1.0
"""A start that is later by less than this is the same."""


class HeadReservation(msgspec.Struct):
    """Places that are kept for one pod, or for as many members of a gang as must be placed together."""

    key: str
    """The gang's namespace/name, or the pod's uid."""
    name: str
    """For people: "team/train", "gang team/train"."""
    gang: str
    """The key of its gang; empty for a pod by itself."""
    places: dict[str, HeldPlace]
    """By uid."""
    awaits: tuple[str, ...]
    """The ids of the grants that have to end before."""
    since: float
    """Since when capacity is reserved for it, wherever, by the core's clock."""
    gpu_milli: int
    starts_by: float | None = None
    """When the last of what it waits for has ended, in seconds since 1970; None where one of these pods does not say
    when it ends, or there is none."""
    placeholders: list[PodState] = []
    """Its placeholder pods on the book, while the places are booked there."""

    @property
    def nodes(self) -> list[str]:
        return sorted({place.node for place in self.places.values()})


class Backfill:
    def __init__(
        self,
        book: Book,
        engine: Engine,
        *,
        gangs: Gangs,
        fair: Fair,
        queue: Queue,
        requests: GroupRequests,
        config: Config,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when pods may fit that were kept off."""
        self._book, self._engine, self._gangs, self._fair, self._queue = book, engine, gangs, fair, queue
        self._requests, self._config, self._changed = requests, config, changed
        self.kept: dict[str, HeadReservation] = {}
        """By key, the most important first."""
        self.too_large: dict[str, str] = {}
        """By key, why no capacity is reserved for what waits, where it would take too much of the cluster."""
        self.idle_gpu_seconds = 0.0
        """GPU time for which reserved capacity was free."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """By key: until when no places are looked for, and how long this pause is."""
        self._since: dict[str, float] = {}
        self._look_at = self._accounted_at = -math.inf
        self._unix_s = 0.0

    @property
    def enabled(self) -> bool:
        """Whether capacity is reserved for any pod at all, by the setting or by that of a queue."""
        tree = self._fair.tree
        return self._config.reserve_after_s > 0 or (tree is not None and tree.reserves)

    @property
    def shown(self) -> tuple[str, ...]:
        """The keys of the reservations with places that are booked now."""
        return tuple(key for key, kept in self.kept.items() if kept.placeholders)

    # --- what a waiting pod may see -----------------------------------------------------------------------------

    def show_to(self, uid: str) -> None:
        """Books the places that this waiting pod is kept off, and no others."""
        if not self.kept:
            return
        self._drop_placed()
        for kept in self.kept.values():
            self._show(kept, shown=self.keeps_off(kept, uid))

    def show_all(self) -> None:
        """Books no reserved place: the book is as it is."""
        for kept in self.kept.values():
            self._show(kept, shown=False)

    @contextmanager
    def shown_to(self, uid: str) -> Iterator[None]:
        """The same for the length of a block, after which the book is as before it."""
        before = {key for key, kept in self.kept.items() if kept.placeholders}
        self.show_to(uid)
        try:
            yield
        finally:
            for key, kept in self.kept.items():
                self._show(kept, shown=key in before)

    def against(self, uid: str) -> list[HeadReservation]:
        """The reservations that keep this waiting pod off."""
        return [kept for kept in self.kept.values() if self.keeps_off(kept, uid)]

    def keeps_off(self, kept: HeadReservation, uid: str) -> bool:
        """Whether a waiting pod has to leave these places free: it comes after the pod or gang that they are for, and
        may still run when that could start."""
        gang = self._gangs.of(uid)
        if kept.gang == gang.key if gang is not None else uid in kept.places:
            return False
        first, head = self._first(uid), self._first(next(iter(kept.places)))
        if self._queue.entry_of(first) is None or self._precedes(first, head):
            return False
        members = [first] if gang is None else list(gang.waiting)
        return not all(self._ends_in_time(self._book.pods[member], kept) for member in members)

    def closed(self, uid: str, nodes: Sequence[str]) -> dict[str, HeadReservation]:
        """Of these nodes, on which the waiting pod fits, those on which it does not fit beside a reservation."""
        against = {node: kept for kept in self.against(uid) for node in kept.nodes}
        near = [name for name in nodes if name in against]
        if not near:
            return {}
        state = self._book.pods[uid]
        with self.shown_to(uid):
            return {name: against[name] for name in near if self._engine.decide(state, self._engine.only(name)) is None}

    def of(self, uid: str) -> HeadReservation | None:
        """The reservation for this pod or its gang."""
        gang = self._gangs.of(uid)
        return self.kept.get(uid if gang is None else gang.key)

    def too_large_for(self, uid: str) -> str:
        """Why no capacity is reserved for a waiting pod or its gang; empty if that is not for its size."""
        return self.too_large.get(self._key(uid), "")

    def reserve_for(self, uid: str, book: Book) -> None:
        """Books in a trial's book what this waiting pod is kept off."""
        for kept in self.against(uid):
            _book(kept, book)

    # --- metrics ------------------------------------------------------------------------------------------------

    @property
    def gpu_milli(self) -> int:
        """GPU milli that are reserved, in use or not."""
        return sum(kept.gpu_milli for kept in self.kept.values())

    def kept_s(self, kept: HeadReservation) -> float:
        """For how many seconds capacity has been reserved for it, as of the last tick."""
        return max(0.0, self._accounted_at - kept.since)

    def idle_milli(self, kept: HeadReservation) -> int:
        """GPU milli of a reservation that are free now. No reserved place may be booked."""
        idle = 0
        for (node, uuid), (mib, milli) in _shares(kept).items():
            room = None if node not in self._book.nodes else self._book.nodes[node].by_uuid.get(uuid)
            if room is not None and room.usable:
                free = min(room.free_milli, room.free_mib * WHOLE_GPU_MILLI // max(1, room.total_mib))
                idle += max(0, min(free, part_of(mib, milli, max(1, room.total_mib))))
        return idle

    # --- for what, and where ------------------------------------------------------------------------------------

    def tick(self, now: float, unix_s: float, first_seen: Mapping[str, float], planned: Collection[str]) -> None:
        """Reserves capacity for those that have waited for long, and ends reservations that are not needed.

        `unix_s`: `now` in seconds since 1970. `first_seen`: by uid, when each waiting pod was. `planned`: uids of pods
        for which a plan reserves places.
        """
        if not self.kept and not self.enabled:
            return
        self._unix_s = unix_s
        self._account(now)
        self._drop_placed()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        accepted: dict[str, HeadReservation] = {}
        before = {key: (kept.starts_by, kept.places) for key, kept in self.kept.items()}
        vain = 0
        for uid in self._waiting_long(now, first_seen, planned):
            if len(accepted) == self._config.max_reservations:
                break
            if vain >= _VAIN_MOST and self._key(uid) not in self.kept:
                continue
            kept = self._for(uid, accepted, now)
            if kept is not None:
                accepted[kept.key] = kept
            else:
                vain += 1
        self.kept = accepted
        for known in (self._pauses, self.too_large):
            for key in [key for key in known if not self._waits(key)]:
                del known[key]
        self._since = {key: since for key, since in self._since.items() if key in accepted}
        if any(
            # Whole places, not their amounts alone: an instance elsewhere on a MIG GPU makes room for another profile.
            key not in accepted or _later(accepted[key].starts_by, start) or accepted[key].places != places
            for key, (start, places) in before.items()
        ):
            self._changed()

    def _account(self, now: float) -> None:
        if self.kept:
            seconds = now - self._accounted_at
            self.idle_gpu_seconds += seconds * sum(map(self.idle_milli, self.kept.values())) / WHOLE_GPU_MILLI
        self._accounted_at = now

    def _waiting_long(self, now: float, first_seen: Mapping[str, float], planned: Collection[str]) -> list[str]:
        """The first pods of those for which capacity may be reserved, the most important first."""
        by_queue: dict[str, list[Entry]] = {}
        heads = {self._queue.first_with(next(iter(kept.places))) for kept in self.kept.values()}
        for queue, entry in self._queue.first_waiting(now, self._config.max_reservations, heads):
            state = self._book.pods[entry[3]]
            after_s, key = self._after_s(state), self._key(state.uid)
            if key not in self.kept and self._pauses.get(key, (now, 0.0))[0] > now:
                continue  # it must not hide those after it
            if after_s and self._gangs.needs_gpus(state) and now - first_seen.get(state.uid, now) >= after_s:
                by_queue.setdefault(queue, []).append(entry)
        firsts = [uid for waiting in by_queue.values() for uid in self._first_able(waiting, planned)]
        new = (uid for uid in sorted(firsts, key=cmp_to_key(self._compare)) if self._key(uid) not in self.kept)
        known = [uid for uid in firsts if self._key(uid) in self.kept]
        return sorted([*known, *islice(new, _CANDIDATES_MOST)], key=cmp_to_key(self._compare))

    def _first_able(self, waiting: list[Entry], planned: Collection[str]) -> list[str]:
        """Of the waiting pods of a queue the first ones that may have capacity reserved."""
        found: list[str] = []
        new = 0
        heapq.heapify(waiting)
        while waiting:
            uid = heapq.heappop(waiting)[3]
            known = self._key(uid) in self.kept
            if (known or new < _CANDIDATES_MOST) and self._may_have_some(self._book.pods[uid], planned):
                found.append(uid)
                new += not known
        return found

    def _compare(self, uid: str, other: str) -> int:
        return -1 if self._precedes(uid, other) else 1

    def _after_s(self, state: PodState) -> float:
        usage = self._fair.usage
        own = None if usage is None else usage.queue_of(state).reserve_after_s
        return self._config.reserve_after_s if own is None else own

    def _may_have_some(self, state: PodState, planned: Collection[str]) -> bool:
        """Whether it waits for capacity, and for nothing else as far as that is known."""
        gang = self._gangs.of(state.uid)
        members = [state.uid] if gang is None else list(gang.waiting)
        return (
            not state.excluded
            and not state.runs_on
            and not self._gangs.unknown_source(state)
            and (gang is None or (gang.gathered and not gang.satisfied and self._first(state.uid) == state.uid))
            and not any(uid in planned for uid in members)
            and self._requests.quota_exceeded(state.uid, self._queue.group_with) is None
        )

    def _first(self, uid: str) -> str:
        """The pod itself, or the member of its gang that stands for all of them in the queue."""
        return uid if self._gangs.of(uid) is None else self._queue.first_with(uid)

    def _key(self, uid: str) -> str:
        gang = self._gangs.of(uid)
        return uid if gang is None else gang.key

    def _waits(self, key: str) -> bool:
        """Whether the pod with this uid, or the gang with this key, still waits."""
        gang = self._gangs.by_key.get(key)
        return key in self._queue if gang is None else bool(gang.waiting)

    def _for(self, uid: str, accepted: Mapping[str, HeadReservation], now: float) -> HeadReservation | None:
        """The reservation for the pod or gang that `uid` heads, beside more important ones."""
        key, gang = self._key(uid), self._gangs.of(uid)
        known, most = self.kept.get(key), self._most_milli() - sum(kept.gpu_milli for kept in accepted.values())
        if known is not None and known.gpu_milli <= most and self._still_fits(known, accepted):
            return known
        members = (
            [self._book.pods[member] for member in self._queue.group_with(uid)] if gang else [self._book.pods[uid]]
        )
        chosen = choose(
            members,
            gang,
            self._engine,
            fair=self._fair,
            unix_s=self._unix_s,
            reserve=lambda trial: _book_all(accepted, trial.book),
        )
        milli = 0 if chosen is None else self._milli_of(chosen.places)
        name = self._book.pods[uid].key if gang is None else f"gang {gang.key}"
        self.too_large.pop(key, None)
        if chosen is None or milli > most:
            if chosen is not None:
                self.too_large[key] = (
                    f"no capacity is reserved for it: it takes {milli / 1000:g} GPUs, and at most "
                    f"{max(0, most) / 1000:g} may be (max_reserved_share)"
                )
            seconds = min(_AGAIN_MOST_S, 2 * self._pauses[key][1] if key in self._pauses else _AGAIN_FIRST_S)
            self._pauses[key] = (now + seconds, seconds)
            return None
        self._pauses.pop(key, None)
        since = self._since.setdefault(key, now)
        kept = HeadReservation(key, name, "" if gang is None else key, chosen.places, chosen.awaits, since, milli)
        kept.starts_by = self._start_of(kept)
        return kept

    def _most_milli(self) -> float:
        return float(self._book.arrays.there.sum()) * WHOLE_GPU_MILLI * self._config.max_reserved_share

    def _milli_of(self, places: Mapping[str, HeldPlace]) -> int:
        milli = 0
        grants = (place.grant for place in places.values() if place.grant is not None)
        for (node, uuid), (mib, compute) in sum_shares(grants).items():
            milli += part_of(mib, compute, max(1, self._book.nodes[node].by_uuid[uuid].total_mib))
        return milli

    def _still_fits(self, kept: HeadReservation, accepted: Mapping[str, HeadReservation]) -> bool:
        """Whether its members would fit on the same nodes if what they wait for had ended, and all that has come since
        and ends in time; and whether they are still as many as have to be placed. Its places are then brought up to
        date."""
        gang = self._gangs.by_key.get(kept.gang)
        if gang is not None:
            together = gang.together(self._queue.group_with(next(iter(kept.places))))
            if gang.by_leaf(kept.places) != gang.by_leaf(together):
                return False
        if any(uid not in self._queue or p.node not in self._book.nodes for uid, p in kept.places.items()):
            return False
        trial = Trial(self._engine)
        _book_all(accepted, trial.book)
        kept.awaits = tuple(grant_id for grant_id in kept.awaits if grant_id in self._book.grants)
        ends = dict.fromkeys((*kept.awaits, *self._in_time(kept)))
        for grant_id in ends:
            lift(trial, self._book.grants[grant_id])
        places: dict[str, HeldPlace] = {}
        for uid, before in kept.places.items():
            state = trial.book.pods[uid]
            place = trial.place_on(state, before.node)
            if place is None:
                return False
            places[uid] = HeldPlace(node=place.node, grant=TrialGrants.grant(state, place))
        if not is_within(places, self._book, self._fair):
            return False
        kept.places, kept.starts_by = places, self._start_of(kept)
        return True

    def _in_time(self, kept: HeadReservation) -> list[str]:
        """The ids of grants on its nodes that end before it could start."""
        found = []
        for name in kept.nodes if kept.starts_by is not None else ():
            for held in self._book.nodes[name].grants.values():
                state = self._book.pods.get(held.uid)
                end = None if state is None or held.phase == "reserved" else end_of(state, self._unix_s)
                if end is not None and kept.starts_by is not None and end.at <= kept.starts_by:
                    found.append(held.grant_id)
        return found

    def _start_of(self, kept: HeadReservation) -> float | None:
        """When all that it waits for has ended, as far as these pods say; None where it waits for none."""
        if not kept.awaits:
            return None
        latest = self._unix_s
        for held in (self._book.grants[grant_id] for grant_id in kept.awaits):
            state = self._book.pods.get(held.uid)
            end = None if state is None or held.phase == "leaving" else end_of(state, self._unix_s)
            if end is None and state is not None and held.phase != "leaving":
                return None
            latest = max(latest, self._unix_s if end is None else end.at)
        return latest

    def _ends_in_time(self, state: PodState, kept: HeadReservation) -> bool:
        """Whether a waiting pod is sure to end before the reserved places could be used, if it starts now."""
        deadline_s = state.pod.spec.active_deadline_seconds
        if kept.starts_by is None or deadline_s is None:
            return False
        return self._unix_s + START_S + deadline_s + grace_s(state.pod) + STUCK_S <= kept.starts_by

    def _precedes(self, uid: str, other: str) -> bool:
        """Whether a waiting pod is tried before the other one. Each stands for its gang."""
        mine, theirs = self._queue.entry_of(uid), self._queue.entry_of(other)
        if mine is None or theirs is None:
            return mine is not None
        tree, usage = self._fair.tree, self._fair.usage
        if tree is None or usage is None:
            return mine < theirs
        return tree.precedes(
            usage.queue_of(self._book.pods[uid]),
            Offer(mine[:3], uid, self._requests.least(uid)),
            usage.queue_of(self._book.pods[other]),
            Offer(theirs[:3], other, self._requests.least(other)),
        )

    # --- on the book --------------------------------------------------------------------------------------------

    def _drop_placed(self) -> None:
        """Ends reservations of what waits no more, and of gangs that have changed."""
        for key, kept in list(self.kept.items()):
            gang = self._gangs.by_key.get(kept.gang)
            waits = all(uid in self._queue and p.node in self._book.nodes for uid, p in kept.places.items())
            if not waits or (gang is not None and (gang.satisfied or not gang.gathered)):
                self._show(kept, shown=False)
                del self.kept[key]
                self._look_at = -math.inf
                self._changed()

    def _show(self, kept: HeadReservation, *, shown: bool) -> None:
        if shown == bool(kept.placeholders):
            return
        with self._book.unwitnessed():  # nothing is used by its queue
            if shown:
                kept.placeholders = _book(kept, self._book)
            else:
                for placeholder in kept.placeholders:
                    self._book.unreserve(placeholder)
                kept.placeholders = []


def _book(kept: HeadReservation, book: Book) -> list[PodState]:
    """Books the places; returns their placeholder pods."""
    placeholders = []
    for uid, place in kept.places.items():
        if place.node in book.nodes:
            grant = None if place.grant is None else msgspec.structs.replace(place.grant, grant_id=f"head/{uid}")
            placeholder = book.pods[uid].placeholder(f"head/{uid}")
            book.reserve(placeholder, place.node, grant)
            placeholders.append(placeholder)
    return placeholders


def _book_all(accepted: Mapping[str, HeadReservation], book: Book) -> None:
    for kept in accepted.values():
        _book(kept, book)


def _shares(kept: HeadReservation) -> dict[tuple[str, str], tuple[int, int]]:
    return sum_shares(place.grant for place in kept.places.values() if place.grant is not None)


def _later(now: float | None, before: float | None) -> bool:
    """Whether pods that end in time may fit that did not before."""
    return now is not None and (before is None or now > before + _LATER_S)
