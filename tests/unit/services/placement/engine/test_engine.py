"""Placement of pods, on a book in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.engine.shape import INFEASIBLE, Row
from services.placement.free_capacity import fits_room
from services.placement.policies.binpack import Binpack
from shared.book.accepts import model_matches
from shared.book.book import Book
from shared.book.states import pod_state
from shared.contracts.facts import Put
from shared.model.gpu import Link
from shared.model.grant import decode_grant
from shared.model.objects import Container, Resources
from shared.scheduling.filters import filters
from tests.support import build
from tests.support.harness.placement import Placement


def gpus_of(placement: Placement, name: str) -> list[str]:
    grant = decode_grant(placement.binds()[f"uid-team-{name}"].grant)
    return [share.uuid for container in grant.containers.values() for share in container.gpus]


def test_slices_share_a_gpu_until_it_is_full_and_then_open_the_next() -> None:
    placement = Placement().nodes("n", gpus=2)
    placement.place(*[build.gpu_pod(f"p{i}", memory="40Gi") for i in range(3)])
    assert [gpus_of(placement, f"p{i}") for i in range(3)] == [["n-gpu-0"], ["n-gpu-0"], ["n-gpu-1"]]


def test_the_rows_of_all_shapes_that_wait_are_kept_where_they_are_small() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.place(*[build.pod(f"p{i}", requests={"cpu": f"{65 + i}"}) for i in range(1500)])
    engine, waiting = placement.core.engine, list(placement.core.book.pods.values())
    before = [engine.row(state) for state in waiting]
    assert all(engine.row(state) is row for state, row in zip(waiting, before, strict=True))


def test_spread_takes_the_gpu_with_the_fewest_containers() -> None:
    placement = Placement(policy="spread").nodes("n", gpus=3)
    placement.place(*[build.gpu_pod(f"p{i}", memory="1Gi") for i in range(4)])
    assert [gpus_of(placement, f"p{i}") for i in range(4)] == [["n-gpu-0"], ["n-gpu-1"], ["n-gpu-2"], ["n-gpu-0"]]


def test_a_pods_own_policy_takes_precedence_over_the_default() -> None:
    placement = Placement(policy="binpack").nodes("n", gpus=2)
    placement.place(
        build.gpu_pod("a", memory="1Gi"), build.gpu_pod("b", memory="1Gi", annotations={"kerf.dev/policy": "spread"})
    )
    assert gpus_of(placement, "b") == ["n-gpu-1"]


def test_least_loaded_nearest_takes_the_least_loaded_gpu_and_then_those_nearest_to_it() -> None:
    """Source 5: affinity against load."""
    links = tuple(Link(a=a, b=b, nvlinks=4 if (a < 2) == (b < 2) else 0) for a in range(4) for b in range(a + 1, 4))
    placement = Placement().nodes("n", gpus=4, links=links)
    placement.place(build.gpu_pod("busy", memory="1Gi"))  # on GPU 0
    placement.place(
        build.gpu_pod("pair", gpus=2, memory="2Gi", annotations={"kerf.dev/policy": "least-loaded-nearest"})
    )
    assert gpus_of(placement, "pair") == ["n-gpu-1", "n-gpu-0"]


def test_required_topology_takes_only_gpus_that_reach_each_other() -> None:
    """Source 3: no peer-to-peer across sockets is a filter, not a weight."""
    links = tuple(Link(a=a, b=b, p2p=(a < 2) == (b < 2)) for a in range(4) for b in range(a + 1, 4))
    placement = Placement().nodes("n", gpus=4, links=links)
    placement.place(build.gpu_pod("one", gpus=1))  # GPU 0
    placement.place(build.gpu_pod("pair", gpus=2, annotations={"kerf.dev/topology": "required"}))
    assert gpus_of(placement, "pair") == ["n-gpu-2", "n-gpu-3"]
    assert placement.place(build.gpu_pod("more", gpus=2, annotations={"kerf.dev/topology": "required"})) == {}


def test_a_whole_gpu_needs_an_unused_one_even_without_reserved_compute() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.place(build.gpu_pod("slice", memory="1Gi"))
    assert placement.place(build.gpu_pod("whole", gpus=1)) == {}


def test_compute_alone_takes_the_same_fraction_of_the_memory() -> None:
    placement = Placement().nodes("n", gpus=1, memory_mib=80000)
    placement.place(build.gpu_pod("p", compute=30))
    share = decode_grant(placement.binds()["uid-team-p"].grant).containers["c"].gpus[0]
    assert (share.memory_mib, share.compute_milli) == (24000, 300)


def test_memory_alone_reserves_no_compute() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.place(build.gpu_pod("p", memory="1Gi"))
    assert decode_grant(placement.binds()["uid-team-p"].grant).containers["c"].gpus[0].compute_milli == 0


def test_each_gpu_container_of_a_pod_has_an_entry_of_its_own() -> None:
    placement = Placement().nodes("n", gpus=2)
    containers = (
        Container(name="a", resources=Resources(limits={"kerf.dev/gpu": "1", "kerf.dev/slot": "1"})),
        Container(name="b", resources=Resources(limits={"kerf.dev/gpu-memory": "8Gi", "kerf.dev/slot": "1"})),
    )
    placement.place(build.pod("p", containers=containers))
    grant = decode_grant(placement.binds()["uid-team-p"].grant)
    assert {name: c.strategy for name, c in grant.containers.items()} == {"a": "exclusive", "b": "advisory"}
    assert len({s.uuid for c in grant.containers.values() for s in c.gpus}) == 2


def test_a_pod_that_fits_on_no_single_gpu_is_not_split() -> None:
    placement = Placement().nodes("n", gpus=2, memory_mib=16384)
    assert placement.place(build.gpu_pod("p", memory="20Gi")) == {}


def test_an_unhealthy_gpu_gets_nothing_new() -> None:
    placement = Placement().nodes("n", gpus=2, states={0: "unhealthy"})
    placement.place(build.gpu_pod("p", gpus=1))
    assert gpus_of(placement, "p") == ["n-gpu-1"]


def test_an_isolation_that_no_strategy_of_the_node_promises_is_refused_by_name() -> None:
    placement = Placement().nodes("n")
    placement.facts(build.gpu_pod("p", memory="1Gi", annotations={"kerf.dev/isolation": "hard"}))
    answer = placement.core.explainer.why(placement.core.book.pods["uid-team-p"], max_nodes=1)
    assert [r.code for r in answer.summary] == ["isolation"]


POLICING = ("exclusive", "advisory", "interposer", "time_slice", "policed")


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [("", "interposer"), ("soft", "interposer"), ("firm", "interposer"), ("policed", "policed")],
)
def test_only_a_pod_that_asks_for_it_gets_a_strategy_that_ends_pods(isolation: str, expected: str) -> None:
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", strategies=POLICING)))
    notes = {"kerf.dev/isolation": isolation} if isolation else {}
    placement.place(build.gpu_pod("p", memory="1Gi", compute=30, annotations=notes))
    grant = decode_grant(placement.binds()["uid-team-p"].grant)
    assert {container.strategy for container in grant.containers.values()} == {expected}


def test_a_policed_pod_waits_where_the_canary_has_not_proven_it_and_is_told_what_fits() -> None:
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", strategies=POLICING[:-1])))
    placement.facts(build.gpu_pod("p", memory="1Gi", annotations={"kerf.dev/isolation": "policed"}))
    answer = placement.core.explainer.why(placement.core.book.pods["uid-team-p"], max_nodes=1)
    (reason,) = answer.summary
    assert (reason.code, "none of which promises policed" in reason.sentence) == ("isolation", True)
    assert [one.sentence for one in answer.counterfactuals] == ["fits with kerf.dev/isolation: firm"]


@pytest.mark.parametrize(
    ("ask", "placed"),
    [
        ({"memory": "1Gi"}, True),
        ({"memory": "1Gi", "compute": 30}, False),
        ({"memory_percent": 50}, True),
        ({"memory_percent": 50, "compute": 30}, False),
    ],
)
def test_the_driver_holds_the_memory_of_a_hard_pod_that_reserves_no_gpu_time(ask: dict[str, Any], placed: bool) -> None:
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", strategies=("exclusive", "advisory", "driver"))))
    notes = {"kerf.dev/isolation": "hard"}
    placement.facts(build.gpu_pod("p", **ask, annotations=notes))
    assert ("uid-team-p" in placement.binds()) is placed
    if not placed:
        (reason,) = placement.core.explainer.why(placement.core.book.pods["uid-team-p"], max_nodes=1).summary
        assert "none of which promises hard for GPU time that is reserved" in reason.sentence
        assert "without kerf.dev/gpu-compute" in reason.helps


@pytest.mark.parametrize(
    ("ask", "isolation", "strategy", "why"),
    [
        ({"memory": "1Gi", "compute": 30}, "soft", "mps", ""),
        ({"memory": "1Gi"}, "", "mps", ""),
        ({"gpus": 1}, "firm", "exclusive", ""),
        ({"memory": "1Gi"}, "firm", "", "none of which promises firm"),
        ({"gpus": 2, "memory": "2Gi"}, "soft", "", "none of which promises parts of several GPUs to one container"),
    ],
)
def test_a_node_with_mps_gives_parts_of_one_gpu_to_pods_that_ask_for_no_protection(
    ask: dict[str, Any], isolation: str, strategy: str, why: str
) -> None:
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", strategies=("exclusive", "mps"))))
    notes = {"kerf.dev/isolation": isolation} if isolation else {}
    placement.facts(build.gpu_pod("p", **ask, annotations=notes))
    if strategy:
        grant = decode_grant(placement.binds()["uid-team-p"].grant)
        assert {container.strategy for container in grant.containers.values()} == {strategy}
        return
    assert placement.binds() == {}
    (reason,) = placement.core.explainer.why(placement.core.book.pods["uid-team-p"], max_nodes=1).summary
    assert (reason.code, why in reason.sentence) == ("isolation", True)


def test_a_hard_pod_is_told_that_it_fits_as_a_policed_one_first() -> None:
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", strategies=POLICING)))
    placement.facts(build.gpu_pod("p", memory="1Gi", annotations={"kerf.dev/isolation": "hard"}))
    answer = placement.core.explainer.why(placement.core.book.pods["uid-team-p"], max_nodes=1)
    assert [one.sentence for one in answer.counterfactuals] == ["fits with kerf.dev/isolation: policed"]


def test_a_pod_without_gpus_goes_to_a_node_without_gpus_first() -> None:
    placement = Placement(build.node("plain")).nodes("n")
    placement.facts(build.node("plain"))
    assert placement.place(build.pod("p", requests={"cpu": "1"})) == {"p": "plain"}


@pytest.mark.parametrize(
    ("model", "wanted", "matches"),
    [
        ("NVIDIA-A100-SXM4-80GB", ("A10",), False),
        ("NVIDIA-A10", ("a10",), True),
        ("NVIDIA-H200", ("H200", "H100"), True),
        ("NVIDIA-H100-80GB-HBM3", ("H200",), False),
        ("V100M16", (), True),
        ("NVIDIA-GeForce-RTX-4090", ("RTX 4090",), False),
        ("NVIDIA-GeForce-RTX-4090", ("RTX-4090",), True),
    ],
)
def test_models_match_whole_words(model: str, wanted: tuple[str, ...], matches: bool) -> None:
    assert model_matches(model, wanted) is matches


def test_after_a_change_of_one_node_a_row_recomputes_only_that_node() -> None:
    placement = Placement().nodes("a", "b", "c")
    row = Row(pod_state(build.gpu_pod("p", memory="1Gi")), Binpack(placement.core.book), placement.core.book)
    row.refresh()
    seen: list[list[int]] = []
    row._recompute = seen.append  # type: ignore[method-assign]
    placement.place(build.gpu_pod("q", memory="1Gi"))
    row.refresh()
    assert seen == [[placement.core.book.nodes["a"].row]]


# --- the columns equal the filters --------------------------------------------------------------------------

ASKS = st.sampled_from(
    [
        {"gpus": 1},
        {"gpus": 2},
        {"memory": "10Gi"},
        {"memory": "30Gi", "compute": 20},
        {"compute": 50},
        {"memory_percent": 50},
        {"memory_percent": 40, "compute": 10},
        {"gpus": 2, "memory": "20Gi"},
        {},
    ]
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(ASKS, st.integers(0, 3)), max_size=25),
    st.lists(ASKS, min_size=1, max_size=4),
    st.lists(st.integers(0, 24), max_size=8),
)
def test_an_incrementally_updated_row_equals_the_filters_run_one_by_one(
    placed: list[tuple[dict, int]], asked: list[dict], ended: list[int]
) -> None:
    placement = Placement().nodes("a", "b", gpus=2).nodes("c", gpus=4, memory_mib=40960)
    placement.facts(build.node("d", cpu="2"))
    book = placement.core.book
    samples = [
        build.gpu_pod(f"s{i}", requests={}, **ask) if ask else build.pod(f"s{i}", requests={"cpu": "1"})
        for i, ask in enumerate(asked)
    ]
    rows = [Row(pod_state(s), policy, book) for s in samples for policy in placement.core.engine.policies.values()]
    bound = []
    for i, (ask, _) in enumerate(placed):
        pod = build.gpu_pod(f"p{i}", **ask) if ask else build.pod(f"p{i}", requests={"cpu": "1"})
        placement.facts(pod)
        if pod.metadata.uid in placement.binds():
            bound.append(placement.bind(pod))
        rows[i % len(rows)].refresh()
    for i in ended:
        if i < len(bound) and bound[i].metadata.uid in book.pods:
            placement.gone(bound[i])
            for held in [h for h in book.grants.values() if h.uid == bound[i].metadata.uid]:
                placement.send(m.ReleaseSeen(held.node, held.grant_id))
    assert book.overbooked() == []
    for row in rows:
        _compare(row, book)


def _compare(row: Row, book: Book) -> None:
    total = row.refresh()
    checks = [c for f in (*filters().node, *filters().room) if (c := f.prepare(row.sample, book)) is not None]
    for node in book.nodes.values():
        by_filters = all(check(node) is None for check in checks)
        assert (total[node.row] != INFEASIBLE) == by_filters, f"{node.name}: the columns and the filters disagree"
    fresh = Row(row.sample, row.policy, book)
    assert np.array_equal(fresh.refresh(), total), "kept up by changes and computed from scratch differ"
    room, _ = fits_room(row.sample, book.arrays, np.arange(len(book.row_names)))
    assert room.dtype == np.bool_


def test_equivalent_nodes_are_distinguished_by_pods_that_request_one_of_them() -> None:
    book = Book()
    for name in ("a", "b", "c"):
        book.apply(Put(object=build.node(name, labels={"kubernetes.io/hostname": name, "zone": "z"})))
        book.put_inventory(build.inventory(name))
        book.set_agent_trouble(name, "")
    by_host = build.gpu_pod("h", gpus=1, node_selector={"kubernetes.io/hostname": "b"})
    by_zone = build.gpu_pod("z", gpus=1, node_selector={"zone": "z"})
    by_uuid = build.gpu_pod("u", gpus=1, annotations={"kerf.dev/gpu-uuid": book.nodes["c"].gpus[0].uuid})
    feasible = []
    for pod in (by_host, by_zone, by_uuid):
        total = Row(pod_state(pod), Binpack(book), book).refresh()
        feasible.append({name for name, node in book.nodes.items() if total[node.row] != INFEASIBLE})
    assert feasible == [{"b"}, {"a", "b", "c"}, {"c"}]
