"""Both schedulers side by side: GPUs used and stranded, waits, and each pod that fared differently."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from statistics import fmean
from typing import Literal

import msgspec

from shadow.gpus import Fleet, GpuUse, Moment
from shadow.history import Arrives, History, Leaves, Life, NodeIs, NodeLeaves, Starts, Step
from shadow.requests import NotTaken, Wanted
from shadow.rerun import Lost, Rerun
from shared.model.request import GpuAsk
from shared.model.units import format_mib

MIN_DIFFERENCE_S = 1.0
"""Times of the API are whole seconds, so less is no difference."""

Kind = Literal["sooner", "later", "elsewhere"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two schedulers. GPUs are means over the time that was watched."""

    gpus_used: float
    """With at least one pod."""
    max_gpus_used: int
    stranded_gpus: float
    """Free memory that no waiting pod could use, in GPUs."""
    scattered_percent: float
    """How much of all free memory was on GPUs with a pod."""
    pods_started: int
    pods_waiting: int
    """At the end."""
    mean_wait_s: float
    """Of all pods that are compared and came in this time; one that still waits counts with its wait until now."""
    p99_wait_s: float
    max_wait_s: float


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when a pod started; `at_s` is None if it did not."""

    at_s: float | None = None
    """Since the beginning."""
    wait_s: float = 0.0
    node: str = ""
    gpus: tuple[str, ...] = ()
    gpus_known: bool = True
    """False: the node's GPUs are only counted there, and these numbers stand for some of them."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    uid: str
    kind: Kind
    """Kerf starts it sooner or later by a second or more, or at the same time elsewhere."""
    asks: str
    """What Kerf reads in it."""
    came_s: float
    """Since the beginning."""
    there: Place
    kerf: Place
    why: str
    """Why Kerf placed it there, or why it waited."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that waits there at the end."""

    pod: str
    asks: str
    wait_s: float
    kerf: str
    """What has become of it with Kerf."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    why: str


class CameAnew(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that had started with Kerf on a node that left."""

    pod: str
    what: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    there: Side
    kerf: Side
    pods: int
    """That are compared."""
    ran_before: int
    """Of those, pods that ran when the watching began; their waits are not known and not counted."""
    differences: tuple[Difference, ...]
    """The largest difference in waiting first."""
    pending: tuple[Pending, ...]
    """The longest wait first."""
    came_anew: tuple[CameAnew, ...]
    """Their wait for another place is part of Kerf's waits."""
    left_out: tuple[LeftOut, ...]
    """Pods that Kerf would refuse. They hold their GPUs there, and none with Kerf."""


def compare(history: History, kerf: Rerun) -> Comparison:
    taken = _taken(history)
    there_waits = {
        uid: _wait(life.created_s, life.bound_s, life.left_s, history)
        for uid, life in taken.items()
        if not life.ran_before
    }
    still = sum(1 for life in taken.values() if life.bound_s is None and life.left_s is None)
    return Comparison(
        there=_side(
            history, history.steps, there_waits, {uid: life.bound_s for uid, life in taken.items()}, waiting=still
        ),
        kerf=kerfs_side(history, kerf),
        pods=len(taken),
        ran_before=sum(1 for life in taken.values() if life.ran_before),
        differences=tuple(_differences(history, kerf, taken)),
        pending=tuple(_pending(history, kerf, taken)),
        came_anew=tuple(CameAnew(pod=taken[uid].key, what=_anew(lost)) for uid, lost in kerf.lost.items()),
        left_out=tuple(
            LeftOut(pod=one.key, why=one.wanted.why)
            for one in history.lives.values()
            if isinstance(one.wanted, NotTaken)
        ),
    )


def kerfs_side(history: History, kerf: Rerun) -> Side:
    started = {uid: kerf.placed[uid].at_s if uid in kerf.placed else None for uid in _taken(history)}
    lives = history.lives
    still = sum(1 for uid, at in started.items() if at is None and lives[uid].deleted_s is None)
    still += sum(lost.waits for lost in kerf.lost.values())
    waits = {uid: wait_s for uid, wait_s in waits_with(history, kerf).items() if not lives[uid].ran_before}
    return _side(history, kerf.steps, waits, started, waiting=still)


def waits_with(history: History, kerf: Rerun) -> dict[str, float]:
    """Seconds by uid; of a pod that ran before, since the watching began."""
    return {uid: _kerfs_wait(life, kerf, history) for uid, life in _taken(history).items()}


def _taken(history: History) -> dict[str, Life]:
    """The pods that Kerf can read."""
    return {uid: life for uid, life in history.lives.items() if isinstance(life.wanted, Wanted)}


def _wait(created_s: float, started_s: float | None, left_s: float | None, history: History) -> float:
    until = started_s if started_s is not None else left_s if left_s is not None else history.ended_s
    return max(0.0, until - created_s)


def _kerfs_wait(life: Life, kerf: Rerun, history: History) -> float:
    started_s = kerf.placed[life.uid].at_s if life.uid in kerf.placed else None
    anew_s = kerf.lost[life.uid].waited_s if life.uid in kerf.lost else 0.0
    return _wait(life.created_s, started_s, life.deleted_s, history) + anew_s


def _side(
    history: History,
    steps: Iterable[Step],
    waits: dict[str, float],
    started: dict[str, float | None],
    *,
    waiting: int,
) -> Side:
    meter = Meter(history)
    for step in steps:
        meter.take(step)
    meter.end(history.ended_s)
    ordered = sorted(waits.values())
    return Side(
        gpus_used=round(meter.mean("used"), 2),
        max_gpus_used=meter.max_used,
        stranded_gpus=round(meter.mean("stranded"), 2),
        scattered_percent=round(100 * meter.total["scattered"] / meter.total["free"], 1)
        if meter.total["free"]
        else 0.0,
        pods_started=sum(1 for at in started.values() if at is not None),
        pods_waiting=waiting,
        mean_wait_s=round(fmean(ordered), 1) if ordered else 0.0,
        p99_wait_s=round(ordered[ceil(0.99 * len(ordered)) - 1], 1) if ordered else 0.0,
        max_wait_s=round(ordered[-1], 1) if ordered else 0.0,
    )


class Meter:
    """Follows the steps of one side, and sums its moments over time."""

    def __init__(self, history: History) -> None:
        self.fleet = Fleet()
        self.total = dict.fromkeys(("used", "free", "scattered", "stranded"), 0.0)
        """GPU-seconds."""
        self.max_used = 0
        self._lives = history.lives
        self._began_s = self._now = history.began_s
        self._waiting: dict[str, tuple[GpuAsk, ...]] = {}

    def take(self, step: Step) -> None:
        """Steps come in the order of their times."""
        self._pass(step.at_s)
        match step:
            case NodeIs():
                self.fleet.set_node(step.name, step.devices)
            case NodeLeaves():
                self.fleet.remove_node(step.name)
            case Arrives():
                wanted = self._lives[step.uid].wanted
                if isinstance(wanted, Wanted):
                    self._waiting[step.uid] = wanted.asks
            case Starts():
                self._waiting.pop(step.uid, None)
                self.fleet.take(step.uid)
                self.fleet.give(step.uid, self._lives[step.uid].key, step.given)
            case Leaves():
                self._waiting.pop(step.uid, None)
                self.fleet.take(step.uid)

    def end(self, at_s: float) -> None:
        self._pass(at_s)
        self._note()

    def mean(self, what: str) -> float:
        over_s = self._now - self._began_s
        return self.total[what] / over_s if over_s else 0.0

    def _pass(self, at_s: float) -> None:
        if at_s <= self._now:
            return
        moment = self._note()
        for what in self.total:
            self.total[what] += getattr(moment, what) * (at_s - self._now)
        self._now = at_s

    def _note(self) -> Moment:
        moment = self.fleet.moment(ask for asks in self._waiting.values() for ask in asks)
        self.max_used = max(self.max_used, moment.used)
        return moment


# --- pod by pod -----------------------------------------------------------------------------------------------------


def _differences(history: History, kerf: Rerun, taken: dict[str, Life]) -> list[Difference]:
    found = []
    for uid, life in taken.items():
        placed = kerf.placed.get(uid)
        there = Place(
            at_s=None if life.bound_s is None else round(life.bound_s - history.began_s, 3),
            wait_s=round(_wait(life.created_s, life.bound_s, life.left_s, history), 3),
            node=life.node,
            gpus=life.gpus,
            gpus_known=life.gpus_known,
        )
        ours = Place(
            at_s=None if placed is None else round(placed.at_s - history.began_s, 3),
            wait_s=round(_kerfs_wait(life, kerf, history), 3),
            node="" if placed is None else placed.node,
            gpus=() if placed is None else placed.gpus,
        )
        kind = _kind(there, ours)
        if kind is None:
            continue
        waited = kerf.waits.get(uid, "") if ours.at_s is None or ours.wait_s >= MIN_DIFFERENCE_S else ""
        chosen = "" if placed is None else placed.why
        found.append(
            Difference(
                pod=life.key,
                uid=uid,
                kind=kind,
                asks=_words(life),
                came_s=round(life.created_s - history.began_s, 3),
                there=there,
                kerf=ours,
                why="; ".join(text for text in (f"waited because {waited}" if waited else "", chosen) if text)
                or "Kerf had not decided on it at the end",
            )
        )
    return sorted(found, key=lambda one: (-abs(one.there.wait_s - one.kerf.wait_s), one.came_s, one.pod))


def _pending(history: History, kerf: Rerun, taken: dict[str, Life]) -> list[Pending]:
    found = []
    for uid, life in taken.items():
        if life.bound_s is not None or life.left_s is not None:
            continue
        placed = kerf.placed.get(uid)
        lost = kerf.lost.get(uid)
        if placed is not None and lost is not None:
            told = f"started on {placed.node}; {_anew(lost)}"
        elif placed is not None:
            told = f"runs on {placed.node} since {placed.at_s - life.created_s:.1f} s after it came"
        else:
            told = f"waits: {kerf.waits.get(uid) or 'it has not been decided on'}"
        wait_s = round(_wait(life.created_s, None, None, history), 1)
        found.append(Pending(pod=life.key, asks=_words(life), wait_s=wait_s, kerf=told))
    return sorted(found, key=lambda one: (-one.wait_s, one.pod))


def _anew(lost: Lost) -> str:
    goes_on = "waits" if lost.waits else "waited"
    return f"node {lost.node} left, and it {goes_on} {lost.waited_s:.1f} s for another place"


def _kind(there: Place, kerf: Place) -> Kind | None:
    if there.at_s is None and kerf.at_s is None:
        return None
    if kerf.at_s is None or (there.at_s is not None and kerf.at_s - there.at_s >= MIN_DIFFERENCE_S):
        return "later"
    if there.at_s is None or there.at_s - kerf.at_s >= MIN_DIFFERENCE_S:
        return "sooner"
    other_gpus = there.gpus_known and bool(there.gpus) and set(there.gpus) != set(kerf.gpus)
    return "elsewhere" if there.node != kerf.node or other_gpus else None


def _words(life: Life) -> str:
    return "; ".join(ask_words(ask) for ask in life.wanted.asks) if isinstance(life.wanted, Wanted) else ""


def ask_words(ask: GpuAsk) -> str:
    gpus = f"{ask.count} GPU" if ask.count == 1 else f"{ask.count} GPUs"
    if ask.whole:
        return f"{gpus}, whole"
    if ask.profile:
        return f"{ask.count} MIG {ask.profile}"
    memory = format_mib(ask.memory_mib) if ask.memory_mib else f"{ask.memory_milli / 10:g} % of the memory"
    return f"{gpus} with {memory}" + (
        f" and {ask.compute_milli / 10:g} % of the compute each" if ask.compute_milli else ""
    )


def fleet_at(history: History, steps: Iterable[Step], at_s: float) -> dict[str, dict[str, GpuUse]]:
    """What each GPU held at a time, once all of that moment had happened, by node and UUID."""
    meter = Meter(history)
    for step in steps:
        if step.at_s > at_s:
            break
        meter.take(step)
    return meter.fleet.nodes
