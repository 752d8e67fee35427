"""A GPU of one node used from another: R6 for two nodes, as a small state machine, explored state by state.

One GPU on the serving node S. Pod 0 runs on the client node C and uses that GPU by a server on S; pod 1 runs on S
itself. Both want all of it. Log and Bindings keep R1 to R5 (tests/model/protocol.py shows that they must): here the
leader may die at any point, and orders to the nodes may be late, repeated or lost. Once each, a pod may be deleted by
force, one edited, S may reboot, and the object of node C be deleted. There is no device gate (R7): it would hide
what these rules are for.

A state is (pods, log, leader, serving, client, orders, budgets):

- pods: (status, version) of each. A Binding names a version.
- log: what the log has of each pod's decision: 0 nothing, 1 its Binding without its share, 2 both; and the version.
- serving, client: what each agent knows of each pod's grant, and its newest term.
- orders: grants on their way, as (node, pod, term). One that was sent may arrive at any later time, and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

GONE, PENDING, BOUND = 0, 1, 2
FREE, HELD, BOOKED, LEAVING, OF_CLIENT = 0, 1, 2, 3, 4
"""How the leader's book counts a pod's share of the GPU. OF_CLIENT: as something that runs on C, which is a mistake."""
UNKNOWN, UNBOUND, KNOWN, RUNS, ENDING, RETURNED = 0, 1, 2, 3, 4, 5
"""What an agent knows of a grant. UNBOUND: decided, its pod not seen bound. ENDING: its release was ordered while it
runs. On S pod 0's server runs, on C its container."""
PODS = (0, 1)
S, C = "S", "C"

RULES = (
    "one-record",
    "serving-node-returns",
    "client-node-gone",
    "serving-node-synced",
    "servers-are-live",
    "clients-are-not-booked",
    "old-terms",
    "bound-first",
    "tombstones",
)
"""Without one of these the GPU is given twice."""
LIVENESS = ("both-are-told", "server-ends")
"""Without one of these a GPU stays taken for ever."""


class Agent(NamedTuple):
    term: int = 0
    grants: tuple[int, int] = (UNKNOWN, UNKNOWN)


class Leader(NamedTuple):
    term: int = 0
    """0: none leads."""
    view: tuple[tuple[int, int], ...] = ()
    book: tuple[int, int] = (FREE, FREE)
    synced: tuple[str, ...] = ()
    torn: int = -1
    """A pod whose Binding is in the log, and whose share is not yet."""


class State(NamedTuple):
    pods: tuple[tuple[int, int], ...] = ((PENDING, 1), (PENDING, 1))
    log: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    leader: Leader = Leader()
    serving: Agent = Agent()
    client: Agent = Agent()
    orders: frozenset[tuple[str, int, int]] = frozenset()
    client_gone: bool = False
    budgets: tuple[int, int, int, int, int] = (2, 1, 1, 1, 1)
    """Left: terms, force deletes, edits, reboots of S, deletions of node C."""


def double_booked(s: State) -> bool:
    """P1 on S: bound or running there exceeds the one GPU."""
    taken = [
        (s.pods[p][0] == BOUND and s.serving.grants[p] != RETURNED) or s.serving.grants[p] in (RUNS, ENDING)
        for p in PODS
    ]
    return all(taken)


def stuck(s: State, off: str) -> bool:
    """Nothing more will happen, and the book counts what no pod has."""
    lost = [p for p in PODS if s.pods[p][0] == GONE and s.leader.book[p] != FREE]
    return bool(lost) and s.leader.term > 0 and all(following == s for _, following in steps(s, off))


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    yield from _pods(s, off)
    yield from _nodes(s, off)
    if s.budgets[0]:
        yield "a leader takes over", _take_over(s, off)
    if s.leader.term:
        yield from _see(s, off)
        yield from _sync(s, off)
        yield from _decide(s, off)
        yield from _release(s, off)


def _spend(s: State, index: int) -> tuple[int, ...]:
    return tuple(left - (i == index) for i, left in enumerate(s.budgets))


def _with(items: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], value, *items[index + 1 :])


def _agent(s: State, node: str) -> Agent:
    return s.serving if node == S else s.client


def _put(s: State, node: str, p: int, to: int, term: int = 0) -> State:
    agent = _agent(s, node)
    after = Agent(max(agent.term, term), _with(agent.grants, p, to))
    return s._replace(serving=after) if node == S else s._replace(client=after)


def _pods(s: State, off: str) -> Iterator[tuple[str, State]]:
    for p in PODS:
        status, version = s.pods[p]
        written, at = s.log[p]
        if status == PENDING and written and at == version:
            yield f"pod {p} is bound", s._replace(pods=_with(s.pods, p, (BOUND, version + 1)))
        if status == PENDING and s.budgets[2]:
            edited = s._replace(pods=_with(s.pods, p, (PENDING, version + 1)), budgets=_spend(s, 2))
            yield f"a user edits pod {p}", edited
        home = s.client if p == 0 else s.serving
        if status == BOUND and home.grants[p] not in (RUNS, ENDING):
            yield f"pod {p} is deleted", s._replace(pods=_with(s.pods, p, (GONE, version + 1)))
        if status != GONE and s.budgets[1]:
            forced = s._replace(pods=_with(s.pods, p, (GONE, version + 1)), budgets=_spend(s, 1))
            yield f"pod {p} is deleted by force", forced


def _nodes(s: State, off: str) -> Iterator[tuple[str, State]]:
    for node, p, term in s.orders:
        agent = _agent(s, node)
        buried = agent.grants[p] == RETURNED and off != "tombstones"
        if (term >= agent.term or off == "old-terms") and not buried and agent.grants[p] not in (RUNS, ENDING):
            yield f"the grant of pod {p} reaches {node}", _put(s, node, p, KNOWN, term)
    for node, p in ((S, 0), (C, 0), (S, 1)):
        known = _agent(s, node).grants[p]
        if known == KNOWN or (known == UNBOUND and off == "bound-first"):
            yield f"{node} starts what pod {p} has there", _put(s, node, p, RUNS)
        if known == RUNS:
            yield f"on {node} what pod {p} has ends", _put(s, node, p, KNOWN)
        if known == ENDING and not (off == "server-ends" and node == S and p == 0):
            yield f"on {node} what pod {p} has ends for good", _put(s, node, p, RETURNED)
    if s.budgets[3] and any(known in (RUNS, ENDING) for known in s.serving.grants):
        server, local = s.serving.grants
        after = (
            RETURNED if server in (RUNS, ENDING) else server,
            KNOWN if local == RUNS else RETURNED if local == ENDING else local,
        )
        yield "S reboots", s._replace(serving=Agent(s.serving.term, after), budgets=_spend(s, 3))
    if s.budgets[4]:
        yield "the object of node C is deleted", s._replace(client_gone=True, budgets=_spend(s, 4))


def _take_over(s: State, off: str) -> State:
    """A new term: the log is replayed, pods are listed. Decisions of pods that still stand are taken over."""
    term = s.leader.term + 1 if s.leader.term else 1
    book = [FREE, FREE]
    for p in PODS:
        status, version = s.pods[p]
        whole = s.log[p][0] == 2
        if status == BOUND and whole and s.serving.grants[p] != RETURNED:
            book[p] = BOOKED
        elif status == PENDING and whole and s.log[p][1] == version:
            book[p] = HELD
    return s._replace(leader=Leader(term, s.pods, (book[0], book[1])), budgets=_spend(s, 0))


def _see(s: State, off: str) -> Iterator[tuple[str, State]]:
    """The feed, at any later time, with what happened in between left out."""
    leader = s.leader
    for p in PODS:
        now, booked = s.pods[p], leader.book[p]
        if leader.view[p] == now:
            continue
        if now[0] == BOUND:
            to = BOOKED if booked == HELD else booked
        elif now[0] == PENDING:
            to = FREE if booked == HELD else booked  # the Binding named another version: the hold is void
        else:
            to = LEAVING if booked in (HELD, BOOKED) else booked
        seen = leader._replace(view=_with(leader.view, p, now), book=_with(leader.book, p, to))
        yield f"the leader sees pod {p}", s._replace(leader=seen)
    for p in PODS:
        # Sent when the pod is seen bound, and again: a repetition changes nothing.
        if leader.book[p] == BOOKED and leader.view[p][0] == BOUND:
            nodes = (S, C) if p == 0 else (S,)
            told = s.orders | {(node, p, leader.term) for node in nodes}
            if told != s.orders:
                yield f"the leader sends the grant of pod {p}", s._replace(orders=told)


def _sync(s: State, off: str) -> Iterator[tuple[str, State]]:
    """The node learns the grants that the leader knows; what it does not name and does not run is never handed over.
    What runs and is not known is booked until it has been given back."""
    leader = s.leader
    for node in (S, C):
        if node in leader.synced or (node == C and s.client_gone):
            continue
        agent, book = _agent(s, node), leader.book
        grants = list(agent.grants)
        for p in PODS if node == S else (0,):
            named = leader.book[p] in (HELD, BOOKED)
            if named and grants[p] == UNKNOWN:
                grants[p] = KNOWN if leader.book[p] == BOOKED else UNBOUND
            elif named and grants[p] == UNBOUND and leader.book[p] == BOOKED:
                grants[p] = KNOWN
            elif not named and grants[p] in (UNBOUND, KNOWN):
                grants[p] = RETURNED
            elif not named and grants[p] in (RUNS, ENDING) and leader.book[p] == FREE:
                if node == S and (p == 1 or off != "servers-are-live"):
                    book = _with(book, p, LEAVING)
                elif node == C and off == "clients-are-not-booked":
                    book = _with(book, p, OF_CLIENT)
        after = Agent(leader.term, (grants[0], grants[1]))
        synced = s._replace(leader=leader._replace(book=book, synced=(*leader.synced, node)))
        yield f"the leader syncs {node}", synced._replace(**({"serving": after} if node == S else {"client": after}))


def _decide(s: State, off: str) -> Iterator[tuple[str, State]]:
    leader = s.leader
    if leader.torn >= 0:
        p = leader.torn
        yield (
            f"logs the share of pod {p}",
            s._replace(log=_with(s.log, p, (2, s.log[p][1])), leader=leader._replace(torn=-1)),
        )
        return
    if any(leader.book) or (S not in leader.synced and off != "serving-node-synced"):
        return
    for p in PODS:
        status, version = leader.view[p]
        if status != PENDING or (p == 0 and s.client_gone):
            continue
        torn = off == "one-record" and p == 0
        held = leader._replace(book=_with(leader.book, p, HELD), torn=p if torn else -1)
        yield f"decides pod {p}", s._replace(leader=held, log=_with(s.log, p, (1 if torn else 2, version)))


def _release(s: State, off: str) -> Iterator[tuple[str, State]]:
    """Releases are ordered until the serving node has said that nothing of it runs."""
    leader = s.leader
    for p in PODS:
        booked, on_s = leader.book[p], s.serving.grants[p]
        # A pod whose client node is gone, or has given its hand-over back, has no use for the server.
        dead = p == 0 and booked == BOOKED and (s.client_gone or s.client.grants[0] == RETURNED)
        if (booked == LEAVING or dead) and on_s != RETURNED and (p == 1 or off != "both-are-told"):
            to = ENDING if on_s in (RUNS, ENDING) else RETURNED
            yield f"the release of pod {p} reaches S", _put(s, S, p, to, leader.term)
        if p == 0 and booked not in (FREE, HELD) and leader.view[p][0] == GONE and s.client.grants[0] != RETURNED:
            to = ENDING if s.client.grants[0] in (RUNS, ENDING) else RETURNED
            yield "the release of pod 0 reaches C", _put(s, C, 0, to, leader.term)
        free = on_s == RETURNED
        if p == 0 and (off == "serving-node-returns" or booked == OF_CLIENT):
            free = free or s.client.grants[0] == RETURNED
        if p == 0 and off == "client-node-gone":
            free = free or s.client_gone
        if booked in (BOOKED, LEAVING, OF_CLIENT) and free:
            after = s._replace(leader=leader._replace(book=_with(leader.book, p, FREE)))
            if s.pods[p][0] == BOUND and leader.view[p][0] == BOUND:
                # R6.6: a living pod whose grant was given back is deleted; its controller makes another.
                gone = (GONE, s.pods[p][1] + 1)
                after = after._replace(pods=_with(s.pods, p, gone))
                yield f"pod {p}'s grant is void, and the pod is replaced", after
            else:
                yield f"the share of pod {p} is free", after


class Result(NamedTuple):
    states: int
    story: list[str]
    """The shortest way to a bad state; empty where there is none."""


def explore(start: State, off: str = "", *, limit: int = 20_000_000) -> Result:
    """Breadth first, so that a counterexample is a shortest one. Bad: a GPU given twice, or one that stays taken."""
    return Result(
        *all_states(start, lambda state: steps(state, off), lambda s: double_booked(s) or stuck(s, off), limit=limit)
    )
