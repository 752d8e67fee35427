"""The log, its terms and its mark as a small state machine, explored state by state.

Two pods want one GPU. Leader sessions take terms, may be frozen at any point and wake at any later one, and may renew.
NATS may come back once without the log's last records, whose numbers then come a second time: by a restart, which loses
the mark too, or by a restored backup of the log while the servers keep running. A Binding that was sent may arrive at
any later time. Nodes are modelled in `orders.py`: here a bound pod keeps the GPU for ever.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.explore import explore as all_states

RULES = (
    "own-term",
    "mark-checked",
    "mark-names-its-writer",
    "mark-before-binding",
    "evidence-until-ready",
    "mark-swapped",
    "recreated",
    "touch-after-loss",
    "holds-again",
)
"""Each rule and its meaning.

- own-term: a renewal names the session's own term, and its own last record, as the newest.
- mark-checked: a leader trusts only a log that has its marked record.
- mark-names-its-writer: the mark states whose record it is, and a record of that number by another session is not that
  record.
- mark-before-binding: a Binding is sent when its record is marked, not when it is logged.
- evidence-until-ready: a leader that ends before its `ready` hides no loss: taking a term leaves the mark as it is.
- mark-swapped: a mark is written by compare-and-swap.
- recreated: a log that has lost records is deleted; the next one's numbers are higher than any before.
- touch-after-loss: on a log without a `ready` every pending pod is moved to another version before anything is decided.
- holds-again: a leader writes the holds that it takes over into the log again, with its `ready`.
"""

OFF, TERM, LISTED, LEADING, DECIDED, LOGGED, OVER = range(7)
NO_MARK = (-1, 0)

Record = tuple[Any, ...]
"""(kind, session, ...): ("T", session) | ("R", session, holds) | ("D", session, pod, version). Its number is its index
plus the log's first number."""


class Session(NamedTuple):
    phase: int = OFF
    number: int = 0
    """Which session this is."""
    term: int = 0
    last: int = 0
    """The number of the last record that it knows."""
    revision: int = 0
    """Of the mark."""
    trusted: bool = False
    holds: frozenset[tuple[int, int]] = frozenset()
    """(pod, version)"""
    versions: tuple[int, int] = (0, 0)
    """Of each pod as it last saw it."""
    decided: tuple[int, int] = (0, 0)
    readied: bool = False


class State(NamedTuple):
    pods: tuple[tuple[int, int], ...] = ((0, 1), (0, 1))
    """(bound by the version that the Binding named; 0: pending, version)"""
    first: int = 10
    log: tuple[Record, ...] = ()
    mark: tuple[int, int] = (9, 0)
    """The number of the marked record, and its session; NO_MARK: lost. For a log that was just created: the number
    before its first."""
    revision: int = 1
    """Another one with each write, and with each loss of the mark."""
    sessions: tuple[Session, ...] = (Session(), Session())
    begun: int = 0
    binds: frozenset[tuple[int, int]] = frozenset()
    losses: int = 1
    terms: int = 3
    clock: int = 10
    """No number given before is as high: the time in milliseconds."""
    led: tuple[tuple[int, int], ...] = ()
    """(term, session) of each session that has taken a term."""


def after_a_leader(*, terms: int, losses: int = 1) -> State:
    """One session has led, and died: its decision of pod 0 is logged and marked, and the Binding is on its way."""
    log: tuple[Record, ...] = (("T", 1), ("R", 1, frozenset()), ("D", 1, 0, 2))
    pods = ((0, 2), (0, 2))
    return State(
        pods=pods,
        log=log,
        mark=(12, 1),
        revision=3,
        begun=1,
        binds=frozenset({(0, 2)}),
        terms=terms,
        clock=12,
        led=((10, 1),),
        losses=losses,
    )


def end(s: State) -> int:
    return s.first + len(s.log) - 1


def newest_term(s: State) -> int:
    return next((s.first + i for i in range(len(s.log) - 1, -1, -1) if s.log[i][0] == "T"), 0)


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    for pod, version in s.binds:
        if s.pods[pod] == (0, version):
            yield (
                f"the Binding of pod {pod} at {version} arrives",
                s._replace(pods=_put(s.pods, pod, (version, version))),
            )
    if s.losses and s.log:
        for cut in range(1, len(s.log) + 1):
            shorter = s._replace(log=s.log[:-cut], losses=s.losses - 1)
            yield (
                f"the servers restart without the last {cut} records",
                shorter._replace(mark=NO_MARK, revision=s.revision + 1),
            )
            yield f"a backup without the last {cut} records takes the log's place", shorter
        yield "the servers restart", s._replace(mark=NO_MARK, revision=s.revision + 1, losses=s.losses - 1)
    for index in range(len(s.sessions)):
        if index and s.sessions[index] == s.sessions[index - 1]:
            continue
        for name, me, rest in _session(s, s.sessions[index], off):
            yield f"session {me.number} {name}", rest._replace(sessions=_put(s.sessions, index, me))


def _session(s: State, me: Session, off: str) -> Iterator[tuple[str, Session, State]]:
    if me.phase == OFF:
        if s.terms:
            number = s.begun + 1
            after = _append(s, ("T", number))._replace(begun=number, terms=s.terms - 1)
            term = end(after)
            mine = Session(phase=TERM, number=number, term=term, last=term)
            if off == "evidence-until-ready":
                mine = mine._replace(trusted=_trusted(s, term, off), revision=s.revision + 1)
                after = after._replace(mark=(term, number), revision=s.revision + 1)
            yield f"takes term {term}", mine, after
        return
    if me.phase not in (OVER,):
        yield "dies", Session(), s
    if me.phase == TERM:
        yield from _look(s, me, off)
    elif me.phase == LISTED:
        yield from _ready(s, me, off)
    elif me.phase == LEADING:
        yield from _lead(s, me, off)
    elif me.phase == DECIDED:
        yield from _log(s, me, ("D", me.number, *me.decided), "logs its decision", LOGGED, off)
    elif me.phase == LOGGED:
        yield from _mark(s, me, off)


def _look(s: State, me: Session, off: str) -> Iterator[tuple[str, Session, State]]:
    """Reads the mark and the log before its term, and lists the pods."""
    trusted = me.trusted if off == "evidence-until-ready" else _trusted(s, me.term, off)
    revision = me.revision if off == "evidence-until-ready" else s.revision
    if not trusted and off != "recreated":
        if newest_term(s) == me.term:
            clock = max(s.clock, end(s)) + 1
            yield (
                "deletes the log",
                Session(),
                s._replace(log=(), first=clock, clock=clock, mark=(clock - 1, 0), revision=s.revision + 1),
            )
        else:
            yield "is superseded", Session(), s
        return
    before = s.log[: max(0, me.term - s.first)]
    ready = any(record[0] == "R" for record in before) and trusted
    # From the term on that wrote the newest `ready`: what was open before it is in the log again.
    readied = max((i for i, record in enumerate(before) if record[0] == "R"), default=0)
    read = before[max((i for i, record in enumerate(before[:readied]) if record[0] == "T"), default=0) :]
    decided = {(r[2], r[3]) for r in read if r[0] == "D"} | {hold for r in read if r[0] == "R" for hold in r[2]}
    holds = frozenset((pod, version) for pod, version in decided if s.pods[pod] == (0, version))
    pods = s.pods
    if not ready and off != "touch-after-loss":
        pods = tuple((bound, version if bound else version + 1) for bound, version in pods)
        holds = frozenset()
    listed = me._replace(phase=LISTED, revision=revision, holds=holds, versions=tuple(v for _, v in pods))
    yield "lists the pods" + ("" if ready else " and touches them"), listed, s._replace(pods=pods)


def _trusted(s: State, term: int, off: str) -> bool:
    if off == "mark-checked":
        return True
    number, session = s.mark
    if s.mark == NO_MARK or number >= term:
        return False
    if not session:
        return True  # nothing has been acted on
    return s.first <= number <= end(s) and (s.log[number - s.first][1] == session or off == "mark-names-its-writer")


def _ready(s: State, me: Session, off: str) -> Iterator[tuple[str, Session, State]]:
    if me.readied:
        for name, marked, rest in _mark(s, me, off):
            yield name, marked._replace(phase=LEADING) if marked.phase == LEADING else marked, rest
        return
    for name, logged, rest in _log(
        s, me, ("R", me.number, me.holds if off != "holds-again" else frozenset()), "writes ready", LISTED, off
    ):
        yield name, logged._replace(readied=True) if logged.phase == LISTED else logged, rest


def _lead(s: State, me: Session, off: str) -> Iterator[tuple[str, Session, State]]:
    for pod, version in me.holds - s.binds:
        yield f"sends the Binding of pod {pod}", me, s._replace(binds=s.binds | {(pod, version)})
    seen = tuple(version for _, version in s.pods)
    void = frozenset(hold for hold in me.holds if s.pods[hold[0]][1] != hold[1])
    if seen != me.versions or void:
        yield "sees how the pods stand", me._replace(versions=seen, holds=me.holds - void), s
    taken = bool(me.holds) or any(bound for bound, _ in s.pods)
    for pod, (bound, _) in enumerate(s.pods):
        if not bound and not taken:
            made = (pod, me.versions[pod])
            yield f"decides pod {pod}", me._replace(phase=DECIDED, decided=made, holds=me.holds | {made}), s
    if s.terms:
        if off == "own-term" or (newest_term(s) == me.term and end(s) == me.last):
            after = _append(s, ("T", me.number))._replace(terms=s.terms - 1)
            renewed = me._replace(phase=LISTED, readied=True, term=end(after), last=end(after))  # its mark is next
            yield f"renews as term {renewed.term}", renewed, after
        else:
            yield "is refused a renewal", Session(), s


def _log(
    s: State, me: Session, record: Record, name: str, phase: int, off: str
) -> Iterator[tuple[str, Session, State]]:
    """An append under the fence of the term and behind the session's own last record."""
    if newest_term(s) != me.term or (end(s) != me.last and off != "own-term"):
        yield "is refused an append", Session(), s
        return
    after = _append(s, record)
    binds = s.binds
    if off == "mark-before-binding" and record[0] == "D":
        binds |= {(record[2], record[3])}
    yield name, me._replace(phase=phase, last=end(after)), after._replace(binds=binds)


def _mark(s: State, me: Session, off: str) -> Iterator[tuple[str, Session, State]]:
    if s.mark == NO_MARK and off != "mark-swapped":
        yield "finds the mark lost", Session(), s
    elif me.revision != s.revision and off != "mark-swapped":
        yield "finds the mark moved", Session(), s
    else:
        led = s.led if (me.term, me.number) in s.led else tuple(sorted((*s.led, (me.term, me.number))))
        binds = s.binds | ({me.decided} if me.phase == LOGGED else frozenset())
        yield (
            "marks its record",
            me._replace(phase=LEADING, revision=s.revision + 1),
            s._replace(mark=(me.last, me.number), revision=s.revision + 1, led=led, binds=binds),
        )


def _append(s: State, record: Record) -> State:
    return s._replace(log=(*s.log, record), clock=max(s.clock, s.first + len(s.log)))


def double_booked(s: State) -> bool:
    return all(bound for bound, _ in s.pods)


def led_twice(s: State) -> bool:
    """Two sessions lead under one number: each takes the other's fence for its own."""
    return len({term for term, _ in s.led}) != len(s.led)


def bad(s: State) -> bool:
    return double_booked(s) or led_twice(s)


def explore(start: State, off: str = "", *, limit: int = 20_000_000) -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), bad, limit=limit)


def _put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*items[:index], value, *items[index + 1 :])
