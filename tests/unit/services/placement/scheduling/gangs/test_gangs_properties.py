"""Properties of gangs over any sequence of events, and of the attempt that is undone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.engine.shape import Row
from services.placement.scheduling.gangs.domains import equal_gangs, may_fit, room_for
from services.placement.scheduling.gangs.placing import by_size, place_gang
from shared.book.gangs import GangState
from shared.contracts.log import DecisionBatch
from shared.model.objects import Pod
from shared.scheduling.transaction import Transaction
from tests.support import build
from tests.support.harness.placement import Placement

RACK = "topology.kubernetes.io/rack"
ASKS: tuple[dict[str, Any], ...] = (
    {"gpus": 1},
    {"gpus": 2},
    {"memory": "40Gi"},
    {"compute": 50},
    {"memory": "20Gi", "compute": 30},
    {"gpus": 3},
)


def member(name: str, gang: str, size: int, ask: dict[str, Any], **notes: str) -> Pod:
    return build.gpu_pod(
        name,
        **ask,
        annotations={"kerf.dev/gang": gang, "kerf.dev/gang-size": str(size)}
        | {f"kerf.dev/gang-{k}": v for k, v in notes.items()},
    )


def picture(placement: Placement) -> dict[str, Any]:
    """The whole book: columns, free capacity, grants, and what is charged to which pod."""
    book = placement.core.book
    arrays = {name: value.tolist() for name, value in vars(book.arrays).items() if isinstance(value, np.ndarray)}
    rooms = {n.name: [(g.uuid, g.free_mib, g.free_milli, g.containers) for g in n.gpus] for n in book.nodes.values()}
    used = {
        n.name: (
            n.cpu_used,
            n.memory_used,
            n.ephemeral_used,
            sorted(n.pods),
            sorted(n.grants),
            {k: v for k, v in n.extended_used.items() if v},
        )
        for n in book.nodes.values()
    }
    pods = {s.uid: (s.charged, s.grant_id) for s in book.pods.values()}
    return {
        "arrays": arrays,
        "rooms": rooms,
        "used": used,
        "pods": pods,
        "repel": sorted(state.uid for state in book.exclusive),
        "digest": book.digest(),
    }


def cluster(shapes: list[int], filled: list[dict[str, Any]]) -> Placement:
    placement = Placement()
    for i, gpus in enumerate(shapes):
        placement.facts(build.node(f"n{i}", cpu="4", labels={RACK: f"r{i % 2}"}))
        placement.send(m.InventorySeen(build.inventory(f"n{i}", gpus=gpus)))
    placement.place(*(build.gpu_pod(f"full{i}", **ask) for i, ask in enumerate(filled)))
    return placement


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=5)
FILLED = st.lists(st.sampled_from(ASKS), max_size=6)
WANTED = st.lists(st.tuples(st.sampled_from(ASKS), st.booleans()), min_size=1, max_size=8)
TOPOLOGY = st.sampled_from(("", "required=rack", "preferred=rack", "required=node"))


def states_of(placement: Placement, wanted: list[tuple[dict[str, Any], bool]]) -> list[Any]:
    """Members on the book that stay in the queue: their gang lacks one more."""
    pods = [member(f"m{i}", "g", len(wanted) + 1, ask) for i, (ask, _) in enumerate(wanted)]
    placement.facts(*pods)
    return [placement.core.book.pods[p.metadata.uid] for p in pods]


@settings(max_examples=150)
@given(SHAPES, FILLED, WANTED, TOPOLOGY, st.integers(1, 8))
def test_an_undone_attempt_leaves_the_book_unchanged_and_every_score_row_correct(
    shapes: list[int], filled: list[dict[str, Any]], wanted: list[tuple[dict[str, Any], bool]], topology: str, need: int
) -> None:
    placement = cluster(shapes, filled)
    states = states_of(placement, wanted)
    core, engine = placement.core, placement.core.engine
    how, _, level = topology.partition("=")
    gang = GangState(
        namespace="team",
        name="try",
        minimum=need,
        **({how: RACK if level == "rack" else "kubernetes.io/hostname"} if how else {}),
    )
    before = picture(placement)
    transaction = Transaction(core.book)
    tried = place_gang(gang, by_size(states), engine, core.grants, transaction=transaction)
    assert (tried.misfit is None) == (len(tried.placed) == min(need, len(states)))
    if how == "required" and tried.placed:
        label = gang.required
        assert len({core.book.nodes[p.place.node].object.metadata.labels[label] for p in tried.placed}) == 1  # type: ignore[union-attr]
    assert core.book.overbooked() == []
    transaction.roll_back()
    assert picture(placement) == before
    for state in states:
        fresh = Row(state, engine.policy_of(state), core.book)
        assert engine.row(state).refresh().tolist() == fresh.refresh().tolist()


@settings(max_examples=150)
@given(SHAPES, FILLED, st.sampled_from(ASKS), st.integers(1, 12))
def test_counting_never_excludes_a_request_that_fits(
    shapes: list[int], filled: list[dict[str, Any]], ask: dict[str, Any], count: int
) -> None:
    """The number of pods that can be placed one after another on a node never exceeds the count."""
    placement = cluster(shapes, filled)
    (state, *_) = states_of(placement, [(ask, True)])
    room = room_for(state, placement.core.engine).copy()
    placed = placement.place(*(build.gpu_pod(f"x{i}", **ask) for i in range(count)))
    by_node: dict[str, int] = {}
    for node in placed.values():
        by_node[node] = by_node.get(node, 0) + 1
    assert all(n <= room[placement.core.book.nodes[name].row] for name, n in by_node.items())


EVENT = st.one_of(
    st.tuples(st.just("create"), st.integers(0, 2), st.sampled_from(ASKS)),
    st.tuples(st.just("bind"), st.integers(0, 20), st.none()),
    st.tuples(st.just("edit"), st.integers(0, 20), st.none()),
    st.tuples(st.just("end"), st.integers(0, 20), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 20), st.none()),
    st.tuples(st.just("release"), st.integers(0, 20), st.none()),
    st.tuples(st.just("tick"), st.integers(0, 70), st.none()),
    st.tuples(st.just("why"), st.integers(0, 20), st.none()),
)
SIZES = ((3, 3), (4, 2), (2, 2))
"""(size, minimum) of the gangs in play."""


@settings(max_examples=200)
@given(SHAPES, st.lists(EVENT, min_size=5, max_size=60), TOPOLOGY)
def test_a_gang_is_whole_or_absent_after_any_sequence_of_events(
    shapes: list[int], events: list[tuple[str, int, Any]], topology: str
) -> None:
    """Whenever members of a gang without places are placed, one log record has as many of them as its minimum still
    lacked."""
    placement = cluster(shapes, [])
    names = [f"n{i}" for i in range(len(shapes))]
    pods: dict[str, Pod] = {}
    gang_of: dict[str, int] = {}
    for number, (kind, index, ask) in enumerate(events):
        core = placement.core
        records = len(placement.log)
        # A member that is done, of a controller, would count too; these pods have none.
        has = [
            sum(1 for uid, g in gang_of.items() if g == i and uid in core.book.pods and core.book.pods[uid].charged)
            for i in range(len(SIZES))
        ]
        some = list(pods.values())[index % len(pods)] if pods else None
        uid = some.metadata.uid if some else ""
        if kind == "create":
            size, minimum = SIZES[index]
            pod = member(
                f"p{number}", f"g{index}", size, ask, min=str(minimum), **({"topology": topology} if topology else {})
            )
            pods[pod.metadata.uid], gang_of[pod.metadata.uid] = pod, index
            placement.facts(pod)
        elif kind == "tick":
            placement.send(m.BeatSeen(tuple(names)))
            placement.tick(float(index))
        elif kind == "release" and core.book.grants:
            leaving = [g for g in core.book.grants.values() if g.phase == "leaving"]
            if leaving:
                placement.send(
                    m.ReleaseSeen(leaving[index % len(leaving)].node, leaving[index % len(leaving)].grant_id)
                )
        elif some is None:
            continue
        elif kind == "bind" and uid in core.holds:
            pods[uid] = placement.bind(some)
        elif kind == "edit":
            pods[uid] = build.newer(
                core.book.pods[uid].pod if uid in core.book.pods else some, labels={"edited": str(number)}
            )
            placement.facts(pods[uid])
        elif kind == "end" and some.spec.node_name:
            placement.facts(build.newer(pods.pop(uid), phase="Failed"))
        elif kind == "delete":
            placement.gone(pods.pop(uid))
        elif kind == "why" and uid in core.book.pods:
            before = picture(placement)
            core.explainer.why(core.book.pods[uid], max_nodes=3)
            assert picture(placement) == before
        first = True
        for _, record in placement.log[records:]:
            for i, (_, minimum) in enumerate(SIZES):
                new = (
                    [d for d in record.decisions if isinstance(record, DecisionBatch) and gang_of[d.uid] == i]
                    if isinstance(record, DecisionBatch)
                    else []
                )
                if new and first and kind not in ("delete", "end", "edit") and not has[i]:
                    assert len(new) >= minimum, f"{len(new)} of gang {i} were decided together, {minimum} are needed"
            first = False
        assert core.book.overbooked() == []
    # No gang waits that could be placed: every complete gang that fits has its places.
    placement.send(m.BeatSeen(tuple(names)))
    placement.tick(11.0)
    placement.tick(0.1)
    for gang in placement.core.gangs.by_key.values():
        if gang.gathered and not any(placement.core.queue.paused(uid, placement.now) for uid in gang.waiting):
            members = [placement.core.book.pods[uid] for uid in gang.waiting]
            core, transaction = placement.core, Transaction(placement.core.book)
            tried = place_gang(gang, by_size(members), core.engine, core.grants, transaction=transaction)
            transaction.roll_back()
            assert tried.misfit is not None, f"{gang.key} waits although it fits"


@settings(max_examples=60, deadline=None)
@given(
    gpus=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    gangs=st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 2), min_size=1, max_size=4)), max_size=5),
)
def test_gangs_that_count_as_equal_may_fit_or_not_alike(gpus: list[int], gangs: list[tuple[int, list[int]]]) -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(len(gpus))), gpus=4)
    for i, free in enumerate(gpus):
        if free < 4:
            at = {"kubernetes.io/hostname": f"n{i}"}
            placement.facts(build.gpu_pod(f"taken{i}", gpus=4 - free, node_selector=at))
    for number, (minimum, sizes) in enumerate(gangs):
        notes = {"min": str(min(minimum, len(sizes)))}
        placement.facts(
            *(
                member(f"g{number}-{i}", f"g{number}", len(sizes), {"gpus": size}, **notes)
                for i, size in enumerate(sizes)
            )
        )
    core, said = placement.core, dict[object, bool]()
    for gang in core.gangs.by_key.values():
        members = [core.book.pods[uid] for uid in gang.waiting]
        equal = equal_gangs(gang, members, core.engine)
        if equal is not None and members:
            fits = may_fit(gang, members, core.engine)
            assert said.setdefault(equal, fits) == fits
        assert (equal is None) == bool(gang.has)
