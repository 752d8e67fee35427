"""Grants on their way to a node as a small state machine, explored state by state.

Two pods want the one GPU of a node. A leader decides, sends Bindings, asks the node to sync, sends it grants and asks
it to release them. Orders arrive in any order and with any delay; a sync that is not answered in time is composed and
sent again. Users edit pending pods, which makes their Bindings fail, and delete pods by force. A leader may die; its
successor lists the pods, takes over what the log has, and syncs. The log may be lost while pod 0 cannot be touched:
then a Binding that no leader remembers may succeed.

How decisions get into the log is modelled in `log.py`: here a decision is in the log immediately. The device gate (R7)
is left out.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.explore import explore as all_states

RULES = ("bound-first", "numbers", "closed-terms", "sync-before-use", "node-returns", "own-words")
"""Each rule and its meaning.

- bound-first: nothing starts by a grant whose pod was not seen bound with it.
- numbers: a sync makes void only what the node learned by an earlier order.
- closed-terms: a sync closes the terms before it: any grant of them that it does not name is void, also if the node
  does not know it.
- sync-before-use: a leader grants nothing on a node that has not answered its sync.
- node-returns: a grant's capacity is free when the node has released it, not when its pod is deleted.
- own-words: what another node reports about this node's grants is ignored.
"""

PENDING, BOUND, GONE = range(3)
HELD, GIVEN, LEAVING = range(3)
UNTOUCHABLE = 0

Grant = tuple[int, int, int]
"""(pod, version at which it was decided, term)"""

Word = tuple[Any, ...]


class Pod(NamedTuple):
    status: int = PENDING
    version: int = 1
    grant: Grant | None = None
    """With which it is bound."""


class Leader(NamedTuple):
    term: int
    seen: tuple[Pod, Pod]
    book: frozenset[tuple[Grant, int]] = frozenset()
    synced: bool = False
    number: int = 0
    excluded: bool = False
    """Whether pod 0 is."""

    def grants(self, *phases: int) -> set[Grant]:
        return {grant for grant, phase in self.book if phase in phases}


class Node(NamedTuple):
    term: int = 0
    closed: tuple[int, int] = (0, 0)
    """(term, number) of the newest sync."""
    known: frozenset[tuple[Grant, tuple[int, int], bool]] = frozenset()
    """(grant, (term, number) of the newest order about it, whether its pod was seen bound)"""
    void: frozenset[Grant] = frozenset()
    runs: frozenset[Grant] = frozenset()
    leaving: frozenset[Grant] = frozenset()

    def knows(self, grant: Grant) -> bool:
        return any(known == grant for known, _, _ in self.known)


class State(NamedTuple):
    pods: tuple[Pod, Pod] = (Pod(), Pod())
    leader: Leader | None = None
    node: Node = Node()
    log: frozenset[Grant] = frozenset()
    excluded: bool = False
    """As in the log's newest `ready`."""
    complete: bool = True
    binds: frozenset[Grant] = frozenset()
    orders: frozenset[Word] = frozenset()
    """("sync", term, number, ((grant, bound), ...)), ("grant", term, number, grant), ("release", term, grant)"""
    words: frozenset[Word] = frozenset()
    """("synced", term, number, running, void), ("released", grant), ("dead", grant)"""
    term: int = 0
    terms: int = 2
    syncs: int = 2
    """A term."""
    edits: int = 1
    deletions: int = 1
    losses: int = 0
    losses_had: bool = False
    lies: int = 0


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    yield from _world(s, off)
    yield from _node(s, off)
    if s.leader is None:
        yield from _begin(s)
    else:
        yield from _lead(s, s.leader, off)


# --- the world ----------------------------------------------------------------------------------------------------


def _world(s: State, off: str) -> Iterator[tuple[str, State]]:
    for grant in s.binds:
        pod = s.pods[grant[0]]
        if pod.status == PENDING and pod.version == grant[1]:
            bound = pod._replace(status=BOUND, grant=grant)
            yield f"the Binding of {grant} arrives", s._replace(pods=_put(s.pods, grant[0], bound))
    for i, pod in enumerate(s.pods):
        if pod.status == PENDING and s.edits:
            edited = pod._replace(version=pod.version + 1)
            yield f"a user edits pod {i}", s._replace(pods=_put(s.pods, i, edited), edits=s.edits - 1)
        if pod.status == BOUND and s.deletions:
            yield f"pod {i} is deleted by force", _gone(s, i)._replace(deletions=s.deletions - 1)
    if s.losses and s.leader is None and s.log:
        yield (
            "the log is lost",
            s._replace(log=frozenset(), excluded=False, complete=False, losses=s.losses - 1, losses_had=True),
        )
    if s.lies and s.leader is not None and off == "own-words":
        for grant in s.leader.grants(GIVEN, LEAVING):
            yield (
                f"another node says that {grant} is released",
                s._replace(words=s.words | {("released", grant)}, lies=s.lies - 1),
            )


def _gone(s: State, i: int) -> State:
    return s._replace(pods=_put(s.pods, i, s.pods[i]._replace(status=GONE)))


# --- the node -----------------------------------------------------------------------------------------------------


def _node(s: State, off: str) -> Iterator[tuple[str, State]]:
    for order in s.orders:
        rest = s._replace(orders=s.orders - {order})
        yield f"the node gets {order}", _ordered(rest, order, off)
    for grant, _, bound in s.node.known:
        if s.pods[grant[0]].status == BOUND and (bound or off == "bound-first") and grant not in s.node.runs:
            yield f"pod {grant[0]} starts by {grant}", s._replace(node=s.node._replace(runs=s.node.runs | {grant}))
    for grant in s.node.runs:
        if s.pods[grant[0]].status == GONE:
            ended = s._replace(node=s.node._replace(runs=s.node.runs - {grant}))
            yield f"the kubelet ends {grant}", _release(ended, grant) if grant in s.node.leaving else ended


def _ordered(s: State, order: Word, off: str) -> State:
    kind, term = order[:2]
    node = s.node
    if term < node.term:
        return s
    node = node._replace(term=term)
    s = s._replace(node=node)
    if kind == "sync":
        return _sync(s, term, order[2], order[3], off)
    if kind == "grant":
        number, grant = order[2:]
        if _is_void(node, grant, off):
            return s._replace(words=s.words | {("dead", grant)})
        return s._replace(node=_learn(node, grant, (term, number), bound=True))
    grant = order[2]
    if grant in node.runs:
        return s._replace(node=node._replace(leaving=node.leaving | {grant}))
    return _release(s, grant)


def _sync(s: State, term: int, number: int, named: tuple[tuple[Grant, bool], ...], off: str) -> State:
    node = s.node
    if (term, number) < node.closed:
        return s
    node = node._replace(
        void=node.void | {grant for grant, _ in named if _is_void(node, grant, off)}, closed=(term, number)
    )
    for grant, order, _ in node.known:
        if (
            grant not in {g for g, _ in named}
            and grant not in node.runs
            and (order < (term, number) or off == "numbers")
        ):
            node = _bury(node, grant)
    for grant, bound in named:
        if grant not in node.void:
            node = _learn(node, grant, (term, number), bound=bound)
    dead = tuple(sorted(grant for grant, _ in named if grant in node.void))
    return s._replace(node=node, words=s.words | {("synced", term, number, tuple(sorted(node.runs)), dead)})


def _is_void(node: Node, grant: Grant, off: str) -> bool:
    return grant in node.void or (grant[2] < node.closed[0] and not node.knows(grant) and off != "closed-terms")


def _learn(node: Node, grant: Grant, order: tuple[int, int], *, bound: bool) -> Node:
    """An order that was overtaken changes nothing, but that a pod was seen bound stays true."""
    before = next(((o, b) for g, o, b in node.known if g == grant), None)
    if before is not None:
        order, bound = max(order, before[0]), bound or before[1]
    return node._replace(known=frozenset(k for k in node.known if k[0] != grant) | {(grant, order, bound)})


def _bury(node: Node, grant: Grant) -> Node:
    return node._replace(
        known=frozenset(k for k in node.known if k[0] != grant),
        void=node.void | {grant},
        leaving=node.leaving - {grant},
    )


def _release(s: State, grant: Grant) -> State:
    return s._replace(node=_bury(s.node, grant), words=s.words | {("released", grant)})


# --- the leader ---------------------------------------------------------------------------------------------------


def _begin(s: State) -> Iterator[tuple[str, State]]:
    """A fresh list, and what the log has; where the log is lost, pods are touched first, and pod 0 cannot be."""
    if not s.terms:
        return
    term, pods, excluded = s.term + 1, s.pods, s.excluded and s.pods[UNTOUCHABLE].status == PENDING
    if not s.complete:
        excluded = pods[UNTOUCHABLE].status == PENDING
        if pods[1].status == PENDING:
            pods = _put(pods, 1, pods[1]._replace(version=pods[1].version + 1))
    book = {(pod.grant, GIVEN) for pod in pods if pod.status == BOUND and pod.grant is not None}
    if s.complete:
        book |= {
            (grant, HELD)
            for grant in s.log
            if pods[grant[0]].status == PENDING
            and pods[grant[0]].version == grant[1]
            and not (excluded and grant[0] == UNTOUCHABLE)
        }
    leader = Leader(term=term, seen=pods, book=frozenset(book), excluded=excluded)
    begun = s._replace(
        pods=pods,
        leader=leader,
        term=term,
        terms=s.terms - 1,
        syncs=2,
        log=frozenset(g for g, _ in book),
        excluded=excluded,
        complete=True,
    )
    yield f"a leader begins term {term}", _send_sync(begun, leader)


def _send_sync(s: State, me: Leader) -> State:
    me = me._replace(number=me.number + 1)
    named = tuple(sorted((grant, phase != HELD) for grant, phase in me.book))
    return s._replace(leader=me, orders=s.orders | {("sync", me.term, me.number, named)}, syncs=s.syncs - 1)


def _lead(s: State, me: Leader, off: str) -> Iterator[tuple[str, State]]:
    yield "the leader dies", s._replace(leader=None)
    if not me.synced and s.syncs:
        yield "the leader syncs again", _send_sync(s, me)
    for i, pod in enumerate(s.pods):
        if pod != me.seen[i]:
            yield f"the leader sees pod {i}", _see(s, me, i, off)
    for grant in me.grants(HELD) - s.binds:
        yield f"the leader sends the Binding of {grant}", s._replace(binds=s.binds | {grant})
    if not me.book and (me.synced or off == "sync-before-use"):
        for i, pod in enumerate(me.seen):
            if pod.status == PENDING and not (me.excluded and i == UNTOUCHABLE):
                grant = (i, pod.version, me.term)
                yield (
                    f"the leader decides {grant}",
                    s._replace(leader=me._replace(book=frozenset({(grant, HELD)})), log=s.log | {grant}),
                )
    for word in s.words:
        yield f"the leader hears {word}", _hear(s._replace(words=s.words - {word}), me, word)


def _see(s: State, me: Leader, i: int, off: str) -> State:
    pod = s.pods[i]
    mine = {(grant, phase) for grant, phase in me.book if grant[0] == i}
    book, orders, number = set(me.book - mine), set(s.orders), me.number
    excluded = me.excluded and not (i == UNTOUCHABLE and pod.version != me.seen[i].version)
    for grant, phase in mine:
        if pod.status == GONE and phase != HELD:
            orders.add(("release", me.term, grant))
            if off != "node-returns":
                book.add((grant, LEAVING))
        elif phase == HELD and not (pod.status == PENDING and pod.version == grant[1]) and pod.grant != grant:
            orders.add(("release", me.term, grant))  # it may have been named in a sync
        elif pod.status != BOUND:
            book.add((grant, phase))
    if pod.status == BOUND and pod.grant is not None and not (excluded and i == UNTOUCHABLE):
        number += 1
        book.add((pod.grant, GIVEN))
        orders.add(("grant", me.term, number, pod.grant))
    seen = me._replace(seen=_put(me.seen, i, pod), book=frozenset(book), number=number, excluded=excluded)
    return s._replace(leader=seen, orders=frozenset(orders))


def _hear(s: State, me: Leader, word: Word) -> State:
    """A pod whose grant is dead is replaced: it is deleted, and a controller creates another."""
    if word[0] == "synced":
        _, term, _, running, dead = word
        if term != me.term or me.synced:
            return s
        strangers = {(grant, LEAVING) for grant in running if grant not in me.grants(HELD, GIVEN, LEAVING)}
        orders = s.orders | {("release", me.term, grant) for grant, _ in strangers}
        s = s._replace(leader=me._replace(synced=True, book=me.book | strangers), orders=orders)
        for grant in dead:
            s = _dead(s, grant)
        return s
    if word[0] == "dead":
        return _dead(s, word[1])
    grant = word[1]
    return s._replace(leader=me._replace(book=me.book - {(grant, GIVEN), (grant, LEAVING)}))


def _dead(s: State, grant: Grant) -> State:
    me = s.leader
    if me is None or grant not in me.grants(GIVEN, LEAVING):
        return s
    s = s._replace(leader=me._replace(book=me.book - {(grant, GIVEN), (grant, LEAVING)}))
    return _gone(s, grant[0]) if s.pods[grant[0]].grant == grant else s


# --- what must not be ---------------------------------------------------------------------------------------------


def double_booked(s: State) -> bool:
    """P1: what is bound, and what runs. A pod that could not be touched may be bound with a void grant, and does not
    count until it runs."""
    bound = {i for i, pod in enumerate(s.pods) if pod.status == BOUND and not (s.losses_had and i == UNTOUCHABLE)}
    return len(bound | {grant[0] for grant in s.node.runs}) > 1


def runs_by_another_grant(s: State) -> bool:
    """P4: what runs is the grant of the pod's annotation."""
    return any(s.pods[grant[0]].status == BOUND and s.pods[grant[0]].grant != grant for grant in s.node.runs)


def bound_in_vain(s: State) -> bool:
    """P5: a pod is bound and lives, and its node will never start it."""
    return any(
        pod.status == BOUND and pod.grant in s.node.void and not (s.losses_had and i == UNTOUCHABLE)
        for i, pod in enumerate(s.pods)
    )


def bad(s: State) -> bool:
    return double_booked(s) or runs_by_another_grant(s) or bound_in_vain(s)


def explore(start: State, off: str = "", *, limit: int = 20_000_000) -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), bad, limit=limit)


def _put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*items[:index], value, *items[index + 1 :])
