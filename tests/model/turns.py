"""Turns by checkpoint as a small state machine, explored state by state.

One GPU that holds one job, and a host that has room for one or two of them. Job 0 has the GPU, job 1 is pending. Plan 1
gives the GPU to job 1, plan 2 gives it back to job 0, which resumes, plan 3 gives it to job 1 again; a leader may give
each up, and where the GPU is free a suspended job resumes by itself. A leader may crash at any point; what it has
requested from the API server may be written at any later time, and the node hears what one leader has sent in its
order. The node moves a job's memory at some time after it has heard of it, and answers both when it hears and when it
is done. An heir stands for all other pods that take what is free of the GPU, a guest for those of other GPUs whose
memory goes to the same host.

`suspension.py` models what this one takes for granted: annotation, orders and answers of one suspension.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

TOUCH = -1
TAKES = "another pod takes what is free"
GUEST = "a pod of another GPU goes to the host"
RULES = (
    "host-booked",
    "host-until-whole",
    "orders-by-number",
    "moved-first",
    "unknown-is-taken",
    "victim-first",
    "reserved",
    "same-patch",
    "resumes",
)
PLANS = ((), (0, 1), (1, 0), (0, 1))
"""By the plan's number: victim and beneficiary."""


class Job(NamedTuple):
    note: int = 0
    """The annotation: for which plan it is checkpointed; 0: none."""
    version: int = 0
    turns: int = 0
    """How many of its turns have ended, by the annotation."""
    recorded: int = 0
    """Of how many of them the GPU time is on the pod."""
    mem: str = "gpu"
    """Where the node has its memory: on the `gpu`, on the `host`, or `none` because it is pending or has ended."""
    goal: str = "gpu"
    """Where the node was told to have it."""
    met: tuple[int, int] = (1, 0)
    """(term, number) of the newest order that the node has met."""
    orders: tuple[tuple[int, int, bool], ...] = ()
    """(term, number, whether to the host), on their way to the node."""
    words: tuple[tuple[int, int, str], ...] = ()
    """(term, number, what it has), on their way to the leader: `host`, `gpu`, or `moving`."""
    booked: bool = True
    """What the leader counts: the GPU,"""
    parked: bool = False
    """and the host."""
    told: int = 0
    told_at: int = 0
    """The number of the order that told the node of the checkpoint."""
    number: int = 0
    """Of the newest order that the leader has sent."""
    asked: int = -1
    """That of the order by which all is to be back; -1: none."""
    resuming: bool = False
    ordered: int = -1
    """The version at which the leader has ordered its checkpoint; -1: the pod has been seen at another one since."""
    unmoved: int = -1
    synced: bool = True

    @property
    def on_gpu(self) -> bool:
        return "gpu" in (self.mem, self.goal)

    @property
    def on_host(self) -> bool:
        return "host" in (self.mem, self.goal)


PENDING = Job(mem="none", goal="none", booked=False)


class State(NamedTuple):
    jobs: tuple[Job, Job] = (Job(), PENDING)
    patches: frozenset[tuple[int, int, int]] = frozenset()
    """Asked for and not written yet: the job, the annotation, and the version that it is for. TOUCH is for any."""
    loose: frozenset[int] = frozenset()
    """Jobs of which the GPU time is still to be written by itself (without the rule same-patch)."""
    term: int = 1
    open: int = 0
    """The plan that is reserved."""
    logged: int = 0
    """The plan that is open in the log, and whose places are booked: one that was given up until its orders cannot be
    written any more."""
    plan: int = 1
    """The next plan that may be made."""
    heir: bool = False
    guest: bool = False
    room: int = 1
    crashes: int = 1

    def put(self, index: int, **changes: object) -> State:
        jobs = list(self.jobs)
        jobs[index] = jobs[index]._replace(**changes)
        return self._replace(jobs=(jobs[0], jobs[1]))


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    yield from _api_server(s, off)
    for i in (0, 1):
        yield from _node(s, i)
        yield from _heard(s, i, off)
        yield from _leader(s, i, off)
    yield from _plans(s, off)
    if s.heir:
        yield "the other pod ends", s._replace(heir=False)
    if s.guest:
        yield "the guest leaves the host", s._replace(guest=False)
    elif all(job.synced for job in s.jobs) and sum(job.parked for job in s.jobs) < s.room:
        yield GUEST, s._replace(guest=True)
    if s.crashes:
        yield "another leader takes over", _crash(s)


def _api_server(s: State, off: str) -> Iterator[tuple[str, State]]:
    for patch in s.patches:
        index, note, version = patch
        job, after = s.jobs[index], s._replace(patches=s.patches - {patch})
        if note == TOUCH:
            yield "a pod is touched", after.put(index, version=job.version + 1)
        elif version != job.version or job.mem == "none":
            yield "a write for another version is refused", after
        elif off == "same-patch" and note:
            ended = after.put(index, note=note, version=job.version + 1, turns=job.turns + 1)
            yield "the annotation is written alone", ended._replace(loose=s.loose | {index})
        else:
            turns = job.turns + bool(note)
            yield (
                "annotation and GPU time are written",
                after.put(index, note=note, version=job.version + 1, turns=turns, recorded=turns),
            )
    for index in s.loose:
        yield "the GPU time is written", s._replace(loose=s.loose - {index}).put(index, recorded=s.jobs[index].turns)


def _node(s: State, i: int) -> Iterator[tuple[str, State]]:
    job = s.jobs[i]
    if job.mem == "none":
        return
    for term in {order[0] for order in job.orders}:
        at = next(k for k, order in enumerate(job.orders) if order[0] == term)
        _, number, to_host = job.orders[at]
        rest = job.orders[:at] + job.orders[at + 1 :]
        if (term, number) < job.met:
            yield "the node refuses an old order", s.put(i, orders=rest)
            continue
        goal = "host" if to_host else "gpu"
        has = goal if job.mem == goal else "moving"
        yield (
            "the node hears an order",
            s.put(i, orders=rest, goal=goal, met=(term, number), words=(*job.words, (term, number, has))),
        )
    if job.mem != job.goal:
        yield "the node has moved the memory", s.put(i, mem=job.goal, words=(*job.words, (*job.met, job.goal)))


def _heard(s: State, i: int, off: str) -> Iterator[tuple[str, State]]:
    job = s.jobs[i]
    if not job.words:
        return
    (term, number, has), *rest = job.words
    s = s.put(i, words=tuple(rest))
    if term < s.term:
        yield "a word to another leader", s
        return
    if not job.synced:
        # The answer to a sync tells what may be on the host: what it orders may not be done yet.
        s = s.put(i, synced=True, parked=job.parked or (job.on_host and off != "unknown-is-taken"))
    confirms = number >= job.told_at or off == "orders-by-number"
    if has == "host" and confirms and job.note and job.note == job.told and not job.resuming and job.unmoved == -1:
        s = s.put(i, booked=False)
    settled = job.ordered == -1 or off == "moved-first"
    if has == "gpu" and number >= job.asked >= 0 and settled and not job.note and not job.told and not _wanted(s, i):
        s = s.put(i, parked=False)
    yield "the leader hears the node", s


def _wanted(s: State, i: int) -> bool:
    return i in PLANS[s.logged][:1]


def _leader(s: State, i: int, off: str) -> Iterator[tuple[str, State]]:
    job, other = s.jobs[i], s.jobs[1 - i]
    if job.mem == "none":
        return
    ours = any(index == i and version == job.version for index, _, version in s.patches)
    if job.unmoved not in (-1, job.version) and job.note == job.told:
        yield "it sees that the pod has moved", s.put(i, unmoved=-1, synced=False, **_order(s, i, bool(job.note)))
    if job.note != job.told:
        if job.note:
            yield (
                "the annotation is seen, the node told",
                s.put(
                    i, told=job.note, told_at=job.number + 1, parked=True, unmoved=-1, ordered=-1, **_order(s, i, True)
                ),
            )
        elif job.booked or not (s.heir or other.booked):
            number = job.number + 1
            told = s.put(i, told=0, booked=True, resuming=False, unmoved=-1, asked=number, **_order(s, i, False))
            yield "it is seen to be gone, the node told", told.put(i, parked=off != "host-until-whole" and job.parked)
    if job.ordered not in (-1, job.version):
        yield "it sees that the order cannot be written any more", s.put(i, ordered=-1)
    settled = job.ordered == -1 or off == "moved-first"
    if not settled and job.ordered == job.version and not s.open and not job.note and (i, TOUCH, 0) not in s.patches:
        yield "it has the pod touched", s._replace(patches=s.patches | {(i, TOUCH, 0)})
    quiet = settled and not job.orders and not job.words and job.mem == job.goal
    if job.parked and not job.note and not job.told and quiet and not _wanted(s, i) and job.synced:
        yield "it asks again whether all is back", s.put(i, asked=job.number + 1, **_order(s, i, False))
    if job.resuming and job.note and not ours:
        yield "the resumption is ordered again", s._replace(patches=s.patches | {(i, 0, job.version)})
    free = not other.booked and not s.heir and not s.logged
    if job.note and job.note == job.told and job.note != s.open and job.unmoved == -1 and not job.resuming and not ours:
        by_plan = s.open and PLANS[s.open][1] == i
        if free and not job.booked and not by_plan and job.synced and off != "resumes":
            yield "it resumes where there is room", _resumed(s, i)


def _order(s: State, i: int, to_host: bool) -> dict[str, object]:
    job = s.jobs[i]
    return {"number": job.number + 1, "orders": (*job.orders, (s.term, job.number + 1, to_host))}


def _resumed(s: State, i: int) -> State:
    return s._replace(patches=s.patches | {(i, 0, s.jobs[i].version)}).put(i, booked=True, resuming=True)


def _plans(s: State, off: str) -> Iterator[tuple[str, State]]:
    if s.logged and not s.open and (off == "moved-first" or s.jobs[PLANS[s.logged][0]].ordered == -1):
        yield "the end of the plan is logged", s._replace(logged=0)
    if not s.open:
        yield from _reserve(s, off)
    else:
        yield from _carry_out(s, off)
        settled = off == "moved-first" or s.jobs[PLANS[s.open][0]].ordered == -1
        yield "the plan is given up", s._replace(open=0, logged=0 if settled else s.logged, plan=s.open + 1)
    if (not s.logged or off == "reserved") and not s.heir and not any(job.booked for job in s.jobs):
        yield TAKES, s._replace(heir=True)
    for i, job in enumerate(s.jobs):
        if job.mem == "gpu" == job.goal and not s.open and not job.note and s.plan > 1 and not s.patches:
            gone = Job(mem="none", goal="none", booked=False)
            yield "a job ends", s.put(i, **gone._asdict())


def _reserve(s: State, off: str) -> Iterator[tuple[str, State]]:
    if s.plan >= len(PLANS) or s.heir or s.logged:
        return
    victim, gains = PLANS[s.plan]
    giver, taker = s.jobs[victim], s.jobs[gains]
    able = giver.mem != "none" and not giver.note and not giver.told and giver.unmoved == -1 and giver.booked
    if taker.mem == "none":
        waits = s.plan == 1
    else:
        waits = bool(taker.note) and taker.note == taker.told and not taker.booked and not taker.resuming
        waits = waits and taker.unmoved == -1
    taken = sum(job.parked for job in s.jobs) + s.guest
    room = giver.parked or taken < s.room or off == "host-booked"
    if able and waits and room and all(job.synced for job in s.jobs):
        yield "a plan is reserved and logged", s._replace(open=s.plan, logged=s.plan).put(victim, parked=True)


def _carry_out(s: State, off: str) -> Iterator[tuple[str, State]]:
    victim, gains = PLANS[s.open]
    giver, taker = s.jobs[victim], s.jobs[gains]
    ours = any(index == victim and version == giver.version for index, _, version in s.patches)
    if not giver.note and not giver.told and not ours and giver.mem != "none":
        ordered = s._replace(patches=s.patches | {(victim, s.open, giver.version)})
        yield "the victim's suspension is ordered", ordered.put(victim, ordered=giver.version)
    done = giver.mem == "none" or (giver.note == s.open and not giver.booked and giver.synced)
    if done or (off == "victim-first" and taker.mem == "host"):
        if taker.mem == "none":
            bound = s._replace(open=0, logged=0, plan=s.open + 1)
            yield "the pending job is bound", bound.put(gains, **Job()._asdict())
        elif taker.note and not taker.resuming and taker.unmoved == -1 and taker.synced:
            yield "the suspended job resumes by the plan", _resumed(s, gains)
        elif not taker.note:
            yield "the plan is over", s._replace(open=0, logged=0, plan=s.open + 1)


def _crash(s: State) -> State:
    """The next leader knows the annotations, the log, and later what the node says."""
    jobs = []
    patches = set(s.patches)
    for i, job in enumerate(s.jobs):
        if job.mem == "none":
            jobs.append(job)
            continue
        order = (s.term + 1, 0, bool(job.note))
        jobs.append(
            job._replace(
                booked=True,
                parked=bool(job.note) or i in PLANS[s.logged][:1],
                told=job.note,
                told_at=0,
                number=0,
                asked=-1,
                resuming=False,
                ordered=job.version if i in PLANS[s.logged][:1] and not job.note else -1,
                unmoved=job.version if job.note else -1,
                synced=False,
                orders=(*job.orders, order),
            )
        )
        if job.note:
            patches.add((i, TOUCH, 0))
    return s._replace(
        jobs=(jobs[0], jobs[1]),
        patches=frozenset(patches),
        loose=frozenset(),
        term=s.term + 1,
        open=s.logged,
        plan=s.logged or s.plan,
        crashes=s.crashes - 1,
    )


def overbooked(s: State) -> bool:
    """The GPU or the host has more than there is room for."""
    return sum(job.on_gpu for job in s.jobs) + s.heir > 1 or sum(job.on_host for job in s.jobs) + s.guest > s.room


def lost(s: State) -> bool:
    """A job is suspended, its GPU time is not on the pod, and nothing will write it."""
    return any(job.recorded < job.turns and i not in s.loose for i, job in enumerate(s.jobs))


def stuck(s: State, off: str) -> bool:
    """A job waits for ever."""
    return any(job.note or job.on_host for job in s.jobs) and all(
        name in (TAKES, GUEST, "the plan is given up")
        for name, _ in steps(s._replace(crashes=0, heir=False, guest=False), off)
    )


def bad(s: State, off: str) -> bool:
    return overbooked(s) or lost(s) or stuck(s, off)


def explore(start: State, off: str = "") -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: bad(state, off), limit=3_000_000)
