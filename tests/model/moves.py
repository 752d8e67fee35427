"""A checkpointed pod that comes back to another GPU as a small state machine, explored state by state.

A node with two GPUs, and a pod that runs on the first. A leader has it checkpointed; when the node has confirmed that,
other pods take what is free. Then the pod resumes where there is room: on its own GPU, or on the other one, for which
its grant is amended in the patch that ends the suspension. A leader may crash at any point, with or without its log;
what it has requested from the API server may be written at any later time, and the node hears what one leader has sent
in its order.

`suspension.py` and `turns.py` model suspensions and host memory, which a move leaves as they are.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

GPUS = (0, 1)
HOST = 2
TOUCH = ("touch", 0, 0)
TAKES = "another pod takes a free GPU"
RULES = (
    "confirmed-first",
    "booked-first",
    "logged-first",
    "one-patch",
    "versions",
    "evidence",
    "seen-before-told",
    "newest-order",
    "replayed",
    "logged-again",
    "feared",
    "feared-logged",
    "void-when-moved",
)


class State(NamedTuple):
    runs: bool = True
    """Whether the pod is not suspended, by its annotation."""
    gpu: int = 0
    """That of its annotated grant."""
    version: int = 0
    patches: frozenset[tuple[str, int, int]] = frozenset()
    """Requested and not written yet: `suspend` or `resume`, the GPU, and the version that it is for. Without the rule
    one-patch also `grant` and `note`, which are the two halves of `resume`."""
    mem: int = 0
    """Where the node has the pod's memory."""
    met: tuple[int, int] = (1, 0)
    """(term, number) of the newest order that the node has met."""
    orders: tuple[tuple[int, int, int], ...] = ()
    """(term, number, where the memory is to be), on their way to the node."""
    words: tuple[tuple[int, int, int], ...] = ()
    """(term, number, where it is), on their way to the leader."""
    term: int = 1
    seen: tuple[bool, int, int] = (True, 0, 0)
    """What the leader has seen of the pod: runs, gpu, version."""
    told: int = 0
    told_at: int = 0
    number: int = 0
    given_up: bool = False
    """The node has confirmed that the pod has nothing on a GPU: the book counts nothing of it there."""
    place: int = -1
    """The GPU that is booked for it to resume on; -1: none."""
    at: int = -1
    """The version for which that was decided."""
    log: frozenset[tuple[int, int]] = frozenset()
    """The resumptions in the log: the GPU and the version. Each leader writes again what still counts."""
    synced: bool = True
    unmoved: int = -1
    """The version that this leader met at its beginning, until it has seen another one."""
    feared: int = -1
    """The version for which any move may have been ordered, by a log that is lost: nothing of the node is given."""
    feared_log: int = -1
    """What the log has of that."""
    others: frozenset[int] = frozenset()
    """The GPUs that other pods have."""
    turns: int = 1
    """How often the leader may still have the pod checkpointed."""
    crashes: int = 1
    losses: int = 1
    """How many of the crashes may take the log with them."""


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    yield from _api_server(s, off)
    yield from _node(s, off)
    yield from _leader(s, off)
    for gpu in GPUS:
        if gpu in s.others:
            yield "another pod ends", s._replace(others=s.others - {gpu})
        elif _is_free(s, gpu):
            yield TAKES, s._replace(others=s.others | {gpu})
    if s.crashes:
        yield "another leader takes over", _taken_over(s, off, lost=False)
        if s.losses:
            yield "another leader takes over without the log", _taken_over(s, off, lost=True)


def _is_free(s: State, gpu: int) -> bool:
    """Whether the book counts nothing there, and the leader may give it."""
    held = not s.given_up and s.seen[1] == gpu
    return s.synced and s.feared == -1 and gpu not in s.others and not held and s.place != gpu


def _api_server(s: State, off: str) -> Iterator[tuple[str, State]]:
    for patch in s.patches:
        kind, gpu, version = patch
        after = s._replace(patches=s.patches - {patch})
        if patch == TOUCH:
            yield "the pod is touched", after._replace(version=s.version + 1)
        elif version != s.version and off != "versions" and kind not in ("grant", "note"):
            yield "a write for another version is refused", after
        elif kind == "suspend":
            yield "the pod is to be checkpointed", after._replace(runs=False, version=s.version + 1)
        elif kind == "resume" and off == "one-patch":
            halves = {("grant", gpu, version), ("note", gpu, version)}
            yield "two patches are made of it", after._replace(patches=after.patches | halves)
        elif kind == "grant":
            yield "the grant is written alone", after._replace(gpu=gpu, version=s.version + 1)
        elif kind == "note":
            yield "the suspension ends alone", after._replace(runs=True, version=s.version + 1)
        else:
            yield "the pod is to resume", after._replace(runs=True, gpu=gpu, version=s.version + 1)


def _node(s: State, off: str) -> Iterator[tuple[str, State]]:
    for term in {order[0] for order in s.orders}:
        at = next(k for k, order in enumerate(s.orders) if order[0] == term)
        _, number, goal = s.orders[at]
        rest = s.orders[:at] + s.orders[at + 1 :]
        if (term, number) < s.met and off != "newest-order":
            yield "the node refuses an old order", s._replace(orders=rest)
        else:
            heard = s._replace(orders=rest, mem=goal, met=(term, number), words=(*s.words, (term, number, goal)))
            yield "the node moves the memory", heard


def _leader(s: State, off: str) -> Iterator[tuple[str, State]]:
    runs, gpu, version = s.seen
    if s.words:
        (term, number, where), *rest = s.words
        after = s._replace(words=tuple(rest))
        if term == s.term:
            after = after._replace(synced=True)
            if where == HOST == s.told and number >= s.told_at and not runs and s.unmoved == -1 and s.place == -1:
                after = after._replace(given_up=True)
        yield "the leader hears the node", after
    if s.seen != (s.runs, s.gpu, s.version):
        yield "the leader sees the pod", _saw(s, off)
    if runs and s.turns and s.synced and s.told == gpu:
        asked = s.patches | {("suspend", gpu, version)}
        yield "a checkpoint is ordered", s._replace(patches=asked, turns=s.turns - 1)
    if not runs and (s.given_up or off == "confirmed-first") and s.place == -1 and s.unmoved == -1:
        for to in GPUS:
            if _is_free(s, to):
                kept = s.log | {(to, version)} if off != "logged-first" else s.log
                booked = s._replace(place=to, at=version, log=kept)
                if off == "booked-first":
                    unbooked = booked._replace(place=-1, at=-1)
                    yield "it is to resume there", unbooked._replace(patches=s.patches | {("resume", to, version)})
                yield "a place is booked and logged", booked
    if s.place != -1 and s.at == version and s.unmoved == -1 and ("resume", s.place, version) not in s.patches:
        yield "it is to resume there", s._replace(patches=s.patches | {("resume", s.place, version)})
    if s.place != -1 and off == "evidence":
        yield "the place is given up", s._replace(place=-1, at=-1)
    if s.place != -1 and off == "seen-before-told" and s.told != s.place:
        yield "the node is told early", _tell(s, s.place)


def _saw(s: State, off: str) -> State:
    after = s._replace(seen=(s.runs, s.gpu, s.version), unmoved=-1, feared=-1)
    kept = off == "void-when-moved" and not s.runs and s.place != -1
    if not kept:
        after = after._replace(place=-1, at=-1)
    if s.runs:
        after = after._replace(given_up=False)
    if s.told != (s.gpu if s.runs else HOST) or s.unmoved != -1:
        after = _tell(after, s.gpu if s.runs else HOST)
    return after


def _tell(s: State, where: int) -> State:
    number = s.number + 1
    return s._replace(told=where, told_at=number, number=number, orders=(*s.orders, (s.term, number, where)))


def _taken_over(s: State, off: str, *, lost: bool) -> State:
    """The new leader has a fresh list, the log unless it is lost, and later what it is told by the node."""
    found = [] if lost else [move for move in s.log if move[1] == s.version]
    feared = s.version if lost or s.feared_log == s.version else -1
    after = s._replace(
        term=s.term + 1,
        seen=(s.runs, s.gpu, s.version),
        given_up=False,
        place=-1,
        at=-1,
        log=frozenset(() if off == "logged-again" else found),
        synced=False,
        unmoved=-1,
        feared=-1,
        feared_log=-1,
        number=0,
        crashes=s.crashes - 1,
        losses=s.losses - lost,
    )
    if not s.runs:
        after = after._replace(unmoved=s.version, patches=s.patches | {TOUCH})
        if found and off != "replayed":
            after = after._replace(place=found[0][0], at=s.version)
        if feared != -1 and off != "feared":
            after = after._replace(feared=feared, feared_log=-1 if off == "feared-logged" else feared)
    return _tell(after, s.gpu if s.runs else HOST)


def bad(s: State, off: str) -> bool:
    """A GPU is another pod's, and this one's too, by its memory or by its annotation; or it waits for ever."""
    return s.mem in s.others or (s.runs and s.gpu in s.others) or stuck(s, off)


def stuck(s: State, off: str) -> bool:
    """The pod is suspended, or its memory is not where its annotation has it, and nothing but other pods can go on."""
    if s.runs and s.mem == s.gpu == s.seen[1]:
        return False
    alone = s._replace(crashes=0, others=frozenset())
    return all(name == TAKES for name, after in steps(alone, off) if after != alone)


def explore(start: State, off: str = "") -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: bad(state, off), limit=3_000_000)
