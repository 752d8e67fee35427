"""Suspension as a small state machine, explored state by state.

One GPU. A pod of lower priority has all of it, and gives a part up for a while, for one pod of higher priority after
another. A leader has the annotation written and learns of it, tells the agent, gets the agent's answer, and books by
that. A leader may crash at any point; what it has requested from the API server may happen at any later time, and what
one leader has sent to the agent arrives in its order. The pods that gain are bound immediately: how a decision becomes
a Binding is modelled in `protocol.py`.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

TOUCH = -1
TAKES = "another pod gets what was given up"
RULES = (
    "node-first",
    "very-words",
    "book-before-resume",
    "old-terms-refused",
    "sync-first",
    "versions",
    "moved-first",
    "resumes",
)


PLANS = 2


class State(NamedTuple):
    note: int = 0
    """The annotation: the number of the plan for which it is suspended; 0: none."""
    version: int = 0
    """The pod's, another one with each write."""
    patches: frozenset[tuple[int, int]] = frozenset()
    """Asked for and not written yet: the number (0: none), and the version that it is for. TOUCH writes nothing else,
    whatever the version."""
    agent: int = 0
    """What the agent has made the pod give up: for which plan; 0: nothing."""
    agent_term: int = 1
    orders: tuple[tuple[int, int], ...] = ()
    """(term, number) on their way to the agent."""
    words: tuple[tuple[int, int], ...] = ()
    """(term, number) on their way to the leader."""
    term: int = 1
    book: int = 0
    """What the leader has booked as given up."""
    told: int = 0
    """What the leader has sent to the agent last."""
    resuming: bool = False
    synced: bool = True
    unmoved: int = -1
    """The version that this leader met at its beginning, until it has seen another: orders of those before it may still
    be written on that one."""
    plan: int = 1
    """The plan under way, or to come."""
    heir: bool = False
    """Another pod has what was given up."""
    crashes: int = 1


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    for number, version in s.patches:
        after = s._replace(patches=s.patches - {(number, version)})
        if number == TOUCH:
            yield "the pod is touched", after._replace(version=s.version + 1)
        elif version == s.version or off == "versions":
            yield "the annotation is written", after._replace(note=number, version=s.version + 1)
        else:
            yield "a write for another version is refused", after
    for term in {term for term, _ in s.orders}:
        at = next(i for i, order in enumerate(s.orders) if order[0] == term)
        number = s.orders[at][1]
        following = s._replace(orders=s.orders[:at] + s.orders[at + 1 :])
        if term >= s.agent_term or off == "old-terms-refused":
            following = following._replace(
                agent=number, agent_term=max(term, s.agent_term), words=(*s.words, (term, number))
            )
        yield "the agent hears an order", following
    if s.words:
        (term, number), *rest = s.words
        yield "the leader hears the agent", _heard(s._replace(words=tuple(rest)), term, number, off)
    if s.heir:
        yield "the heir ends", s._replace(heir=False)
    yield from _leader(s, off)
    if s.crashes:
        unmoved = -1 if off == "moved-first" else s.version
        taken = s._replace(
            term=s.term + 1,
            book=0,
            told=s.note,
            resuming=False,
            synced=off == "sync-first",
            unmoved=unmoved,
            patches=s.patches | {(TOUCH, 0)},
            crashes=s.crashes - 1,
        )
        if off == "sync-first":
            taken = taken._replace(book=s.note)
        yield "another leader takes over and asks the node", taken._replace(orders=(*s.orders, (taken.term, s.note)))


def _heard(s: State, term: int, number: int, off: str) -> State:
    if term < s.term:
        return s  # to another leader
    s = s._replace(synced=True)
    if s.note and not s.resuming and (number == s.note or (off == "very-words" and number)):
        return s._replace(book=s.note)
    return s


def _leader(s: State, off: str) -> Iterator[tuple[str, State]]:
    wanted, ours = s.plan if s.plan <= PLANS else 0, not any(version == s.version for _, version in s.patches)
    unmoved = -1 if s.unmoved != s.version else s.unmoved
    if s.unmoved != unmoved and s.note == s.told:
        yield "it sees that the pod has moved", s._replace(unmoved=-1)
    if wanted and not s.note and not s.resuming and ours and s.synced and s.unmoved == -1:
        yield "a plan is logged", s._replace(patches=s.patches | {(wanted, s.version)})
    if s.note != s.told:
        if s.note:
            booked = s.note if off == "node-first" else s.book
            yield (
                "the annotation is seen, the agent told",
                s._replace(told=s.note, book=booked, unmoved=unmoved, orders=(*s.orders, (s.term, s.note))),
            )
        else:
            yield (
                "it is seen to be gone, the agent told",
                s._replace(told=0, book=0, resuming=False, unmoved=unmoved, orders=(*s.orders, (s.term, 0))),
            )
    if s.book and not s.heir and s.synced and s.unmoved == -1 and (not s.resuming or off == "book-before-resume"):
        yield TAKES, s._replace(heir=True, plan=s.plan + (s.book == wanted))
    if s.note and s.note != wanted and not s.heir and s.synced and s.unmoved == -1 and ours and off != "resumes":
        yield (
            "it may resume",
            s._replace(
                book=s.book if off == "book-before-resume" else 0, resuming=True, patches=s.patches | {(0, s.version)}
            ),
        )
    if s.note and s.note == wanted and not s.heir and s.synced and not s.resuming:
        yield "the plan is given up", s._replace(plan=s.plan + 1)


def double_booked(s: State) -> bool:
    """Another pod has what the suspended pod has taken back."""
    return s.heir and not s.agent


def stuck(s: State, off: str) -> bool:
    """No step is possible except that another pod takes what this pod gave up: this pod does not get it back, although
    it may."""
    return (
        not s.heir and bool(s.agent or s.note) and all(name == TAKES for name, _ in steps(s._replace(crashes=0), off))
    )


def bad(s: State, off: str) -> bool:
    return double_booked(s) or stuck(s, off)


def explore(start: State, off: str = "") -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: bad(state, off), limit=3_000_000)
