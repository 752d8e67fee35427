"""Live resize as a small state machine, explored state by state.

One GPU of two units. A pod has one of them or both, and another pod takes what the book says is free. A user changes
how much the pod shall have. A leader orders a smaller amount from the node first and then has the annotation written;
a larger one it books, logs, has written, and tells the node last. A leader may crash at any point, with or without its
log; what it has requested from the API server may happen at any later time, and so may what it has sent to the node.
The node may lose its checkpoint with its containers: it starts them again by what the leader tells it then.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

UNITS = 2
TOUCH = (0, 0, 0)
USER = ("the user wants another amount", "the program allocates", "the program frees", "another pod takes what is free")
RULES = (
    "booked-first",
    "logged-first",
    "versions",
    "evidence",
    "annotated-before-told",
    "node-first",
    "used-kept",
    "annotated-before-freed",
    "promise-kept",
    "amendments-rise",
    "replayed",
    "feared",
    "feared-logged",
    "void-when-moved",
    "withdrawn",
    "synced-with-less",
)


class State(NamedTuple):
    wanted: int = 1
    """What the user has annotated."""
    granted: int = 1
    """The grant's amount by its annotation."""
    amendment: int = 0
    """How often the grant was amended."""
    version: int = 0
    """The pod's, another one with each write."""
    patches: frozenset[tuple[int, int, int]] = frozenset()
    """Requested and not written yet: amount, amendment, and the version it is for. TOUCH moves the version alone."""
    node: int = 1
    """The amount that the slice may use."""
    node_amendment: int = 0
    """Of the newest grant that the node was told."""
    used: int = 1
    """What the program has."""
    orders: frozenset[tuple[str, int, int]] = frozenset()
    """On their way to the node, in any order: "grant" or "shrink", an amount and an amendment."""
    promises: frozenset[tuple[int, int]] = frozenset()
    """The node's, on their way to the leader or heard: amount and the amendment that it is for."""
    seen: tuple[int, int, int, int] = (1, 1, 0, 0)
    """What the leader has seen of the pod: wanted, granted, amendment, version."""
    book: int = 1
    growing: int = -1
    """The version for which a growth is booked; -1: none."""
    log: frozenset[int] = frozenset()
    """The versions for which a growth is logged."""
    heir: bool = False
    """Another pod has a unit."""
    edits: int = 2
    crashes: int = 1
    losses: int = 1
    """How many of the crashes may take the log with them."""
    wipes: int = 0
    """How often the node may lose its checkpoint."""
    blank: bool = False
    """It has lost it, and has not been synced since: nothing runs there."""


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    if s.edits:
        yield USER[0], s._replace(wanted=UNITS + 1 - s.wanted, version=s.version + 1, edits=s.edits - 1)
    if s.used < s.node:
        yield USER[1], s._replace(used=s.used + 1)
    if s.used > 1:
        yield USER[2], s._replace(used=s.used - 1)
    if s.heir:
        yield "the other pod ends", s._replace(heir=False)
    elif s.book < UNITS:
        yield USER[3], s._replace(heir=True)
    yield from _api_server(s, off)
    yield from _node(s, off)
    yield from _leader(s, off)
    if s.crashes:
        yield "another leader takes over", _taken_over(s, off, lost=False)
        if s.losses:
            yield "another leader takes over without the log", _taken_over(s, off, lost=True)


def _api_server(s: State, off: str) -> Iterator[tuple[str, State]]:
    for patch in s.patches:
        amount, amendment, version = patch
        after = s._replace(patches=s.patches - {patch})
        if patch == TOUCH:
            yield "the pod is touched", after._replace(version=s.version + 1)
        elif version == s.version or off == "versions":
            yield "the grant is amended", after._replace(granted=amount, amendment=amendment, version=s.version + 1)
        else:
            yield "a write for another version is refused", after


def _node(s: State, off: str) -> Iterator[tuple[str, State]]:
    if s.wipes and not s.blank:
        yield "the node loses its checkpoint", s._replace(wipes=s.wipes - 1, blank=True, node=0, used=0)
    if s.blank:
        yield "the node is synced", _synced(s, off)
        return  # without a sync it knows no grant
    for order in s.orders:
        kind, amount, amendment = order
        after = s._replace(orders=s.orders - {order})
        if kind == "grant":
            if amendment > s.node_amendment or off == "amendments-rise":
                after = after._replace(node=amount, node_amendment=amendment)
            elif off == "promise-kept" and amendment == s.node_amendment:
                after = after._replace(node=amount)
            elif amendment == s.node_amendment and s.node < amount:
                after = after._replace(promises=s.promises | {(s.node, amendment)})
            yield "the node is told a grant", after
        elif amendment == s.node_amendment and (s.used <= amount or off == "used-kept"):
            after = after._replace(node=min(s.node, amount), promises=s.promises | {(amount, amendment)})
            yield "the node promises to use less", after
        else:
            yield "the node refuses to use less", after


def _leader(s: State, off: str) -> Iterator[tuple[str, State]]:
    wanted, granted, amendment, version = s.seen
    now = (s.wanted, s.granted, s.amendment, s.version)
    if s.seen != now:
        after = s._replace(seen=now)
        if s.growing != s.version and not (off == "void-when-moved" and s.amendment == amendment and s.growing >= 0):
            after = after._replace(growing=-1, book=s.granted)
        if s.amendment > amendment:
            after = after._replace(orders=s.orders | {("grant", s.granted, s.amendment)})
        yield "the leader sees the pod", after
    if s.growing >= 0:
        growth = (wanted, amendment + 1, s.growing)
        if s.growing == version and wanted > granted and (s.book + s.heir <= UNITS) and growth not in s.patches:
            yield "the growth is ordered", s._replace(patches=s.patches | {growth})
        if s.book + s.heir > UNITS and s.growing == version == s.version:  # a second touch shows nothing new
            yield "the pod is to be touched", s._replace(patches=s.patches | {TOUCH})
        if off == "evidence":
            yield "the growth is given up", s._replace(growing=-1, book=granted)
        if off == "annotated-before-told":
            yield "the node is told early", s._replace(orders=s.orders | {("grant", wanted, amendment + 1)})
    elif wanted > granted and wanted + s.heir <= UNITS:
        after = s._replace(growing=version, book=wanted, log=s.log | {version})
        if off == "booked-first":
            after = after._replace(book=s.book)
        if off == "logged-first":
            after = after._replace(log=s.log)
        yield "a growth is booked and logged", after
    elif wanted < granted:
        promised = (wanted, amendment) in s.promises or off == "node-first"
        if not promised and ("shrink", wanted, amendment) not in s.orders:
            yield "the node is to use less", s._replace(orders=s.orders | {("shrink", wanted, amendment)})
        if promised and (wanted, amendment + 1, version) not in s.patches:
            yield "the shrinking is ordered", s._replace(patches=s.patches | {(wanted, amendment + 1, version)})
        if promised and off == "annotated-before-freed":
            yield "the book follows the node", s._replace(book=wanted)
    if s.growing < 0 and wanted >= granted and any(of == amendment for _, of in s.promises) and off != "withdrawn":
        same = (granted, amendment + 1, version)
        if same not in s.patches:
            yield "the promise is withdrawn", s._replace(patches=s.patches | {same})


def _synced(s: State, off: str) -> State:
    """The node learns what the leader has seen of the pod, and what it is to have less of. Orders and promises of
    before do not count any more."""
    wanted, granted, amendment, _ = s.seen
    less = wanted < granted and off != "synced-with-less"
    return s._replace(
        blank=False,
        node=wanted if less else granted,
        node_amendment=amendment,
        orders=frozenset(),
        promises=frozenset({(wanted, amendment)}) if less else frozenset(),
    )


def _taken_over(s: State, off: str, *, lost: bool) -> State:
    """The new leader has a fresh list, the log unless it is lost, and what it is told by the node: a sync."""
    log: frozenset[int] = frozenset() if lost else s.log
    after = s._replace(
        seen=(s.wanted, s.granted, s.amendment, s.version),
        book=s.granted,
        growing=-1,
        log=log,
        promises=frozenset(),
        orders=s.orders | {("grant", s.granted, s.amendment)},
        crashes=s.crashes - 1,
        losses=s.losses - lost,
    )
    if s.wanted > s.granted and ((s.version in log and off != "replayed") or (lost and off != "feared")):
        after = after._replace(growing=s.version, book=s.wanted)
        if off != "feared-logged":
            after = after._replace(log=log | {s.version})
    return after


def bad(s: State, off: str) -> bool:
    """Two pods have the same unit, by the slice's limit or by the annotation; memory in use is taken; or nothing goes
    on although the pod could have what it wants."""
    return s.node + s.heir > UNITS or s.granted + s.heir > UNITS or s.used > s.node or stuck(s, off)


def stuck(s: State, off: str) -> bool:
    """Nothing but the user, the program and the other pod can go on, and the slice is not what is wanted."""
    done = s.granted == s.wanted and s.node == s.granted and s.book == s.granted
    waits = s.wanted > s.granted == s.node and s.heir
    if s.blank:
        return False  # it is synced next
    if done or waits:
        return False
    return all(name in USER for name, after in steps(s._replace(crashes=0), off) if after != s)


def explore(start: State, off: str = "") -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: bad(state, off), limit=3_000_000)
