"""Facts in, grants and holds out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.book.book import Book
from shared.contracts.facts import Gone, Put
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build


def grant(grant_id: str, node: str = "n", gpu: int = 0, mib: int = 1024, milli: int = 100) -> Grant:
    share = GpuShare(node=node, uuid=f"{node}-gpu-{gpu}", memory_mib=mib, compute_milli=milli)
    return Grant(grant_id=grant_id, term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})


def book(*facts: object) -> Book:
    made = Book()
    for fact in facts:
        made.apply(fact)  # type: ignore[arg-type]
    return made


def free(made: Book, node: str = "n", gpu: int = 0) -> tuple[int, int]:
    room = made.nodes[node].gpus[gpu]
    return room.free_mib, room.free_milli


def test_an_older_version_of_an_object_changes_nothing() -> None:
    old = build.pod("p", requests={"cpu": "1"})
    new = build.bound(old, "n")
    made = book(*build.put(build.node("n"), new))
    assert made.apply(Put(object=old)) == []
    assert made.nodes["n"].cpu_used == 1000


def test_a_grant_is_counted_whether_its_node_is_known_before_or_after() -> None:
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    for order in ("pod first", "node first"):
        made = Book()
        if order == "node first":
            made.put_inventory(build.inventory("n", gpus=1))
        for fact in build.put(pod, build.node("n")):
            made.apply(fact)
        made.put_inventory(build.inventory("n", gpus=1))
        assert free(made) == (81920 - 1024, 900), order


def test_a_grant_on_a_gpu_that_was_replaced_takes_nothing_of_the_new_one() -> None:
    made = book(*build.put(build.node("n"), build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g", gpu=7))))
    made.put_inventory(build.inventory("n", gpus=1))
    assert free(made) == (81920, 1000)


def test_overbooking_by_other_schedulers_is_reported() -> None:
    pods = [build.bound(build.gpu_pod(f"p{i}", gpus=1), "n", grant(f"g{i}", mib=81920, milli=1000)) for i in range(2)]
    made = book(*build.put(build.node("n"), *pods))
    made.put_inventory(build.inventory("n", gpus=1))
    assert made.overbooked() == ["n/n-gpu-0"]


def test_an_edited_grant_annotation_on_a_bound_pod_changes_nothing() -> None:
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    made = book(*build.put(build.node("n"), pod))
    made.put_inventory(build.inventory("n", gpus=1))
    made.apply(Put(object=build.newer(pod, annotations={})))
    assert free(made) == (81920 - 1024, 900)


def test_a_resized_pod_is_charged_what_it_needs_now() -> None:
    import msgspec

    pod = build.bound(build.pod("p", requests={"cpu": "1"}), "n")
    made = book(*build.put(build.node("n"), pod))
    bigger = msgspec.structs.replace(
        build.newer(pod),
        spec=msgspec.structs.replace(pod.spec, containers=build.pod("p", requests={"cpu": "3"}).spec.containers),
    )
    made.apply(Put(object=bigger))
    assert made.nodes["n"].cpu_used == 3000


def test_foreign_memory_is_not_given_away() -> None:
    import msgspec

    made = book(*build.put(build.node("n")))
    seen = build.inventory("n", gpus=1)
    made.put_inventory(msgspec.structs.replace(seen, gpus=(msgspec.structs.replace(seen.gpus[0], foreign_mib=10_000),)))
    assert free(made) == (71920, 1000)


def test_a_snapshot_of_known_state_changes_nothing() -> None:
    facts = build.put(
        build.node("n"),
        build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g")),
        build.gpu_pod("q", memory="1Gi"),
    )
    made = book(*facts)
    before = made.digest()
    assert [c for c in made.apply_snapshot(facts) if c.kind in ("void", "bound", "ended")] == []
    assert made.digest() == before


def test_objects_that_a_snapshot_lacks_are_removed() -> None:
    pod, node = build.bound(build.pod("p", requests={"cpu": "1"}), "n"), build.node("n")
    made = book(*build.put(node, pod))
    assert [c.kind for c in made.apply_snapshot(build.put(node)) if c.name == pod.metadata.uid] == ["ended"]
    assert made.nodes["n"].cpu_used == 0


def test_a_hold_of_a_pod_that_a_snapshot_lacks_waits_for_its_node() -> None:
    """The pod's deletion was not seen: it may have been bound, and started, between its last state and its end."""
    pod = build.gpu_pod("p", memory="1Gi", requests={"cpu": "1"})
    made = book(*build.put(build.node("n"), pod))
    made.put_inventory(build.inventory("n", gpus=1))
    made.hold(pod.metadata.uid, "n", grant("g"))
    changes = made.apply_snapshot(build.put(build.node("n")))
    assert [(c.kind, c.grant_id) for c in changes if c.name == pod.metadata.uid] == [("ended", "g")]
    assert (made.grants["g"].phase, free(made)) == ("leaving", (81920 - 1024, 900))
    assert made.nodes["n"].cpu_used == 0
    made.release("g")
    assert free(made) == (81920, 1000)


def test_a_pod_that_is_bound_by_another_decision_frees_the_one_that_was_decided() -> None:
    """Its Binding named another grant: the held one can never succeed at this version."""
    pod = build.gpu_pod("p", memory="1Gi")
    made = book(*build.put(build.node("n"), pod))
    made.put_inventory(build.inventory("n", gpus=2))
    made.hold(pod.metadata.uid, "n", grant("decided", gpu=0))
    made.apply(Put(object=build.bound(pod, "n", grant("older", gpu=1))))
    assert {held.grant_id: held.phase for held in made.grants.values()} == {"older": "bound"}
    assert (free(made, gpu=0), free(made, gpu=1)) == ((81920, 1000), (81920 - 1024, 900))


def test_a_pod_that_another_scheduler_binds_without_a_grant_frees_the_decided_grant() -> None:
    pod = build.gpu_pod("p", memory="1Gi")
    made = book(*build.put(build.node("n"), pod))
    made.put_inventory(build.inventory("n", gpus=1))
    made.hold(pod.metadata.uid, "n", grant("decided"))
    made.apply(Put(object=build.bound(pod, "n")))
    assert (made.grants, free(made)) == ({}, (81920, 1000))


def test_a_released_grant_is_not_booked_again_when_its_pod_ends() -> None:
    """Its annotation stays on the pod to the end."""
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    made = book(*build.put(build.node("n"), pod))
    made.put_inventory(build.inventory("n", gpus=1))
    made.release("g")
    made.apply(Put(object=build.newer(pod, phase="Succeeded")))
    assert (made.grants, free(made)) == ({}, (81920, 1000))


def test_an_older_inventory_of_the_same_boot_changes_nothing() -> None:
    made = book(*build.put(build.node("n")))
    made.put_inventory(build.inventory("n", gpus=2, generation=5))
    made.put_inventory(build.inventory("n", gpus=1, generation=4))
    assert len(made.nodes["n"].gpus) == 2
    made.put_inventory(build.inventory("n", gpus=1, generation=1, boot="boot-2"))
    assert len(made.nodes["n"].gpus) == 1, "numbers start again with a boot"


def test_a_freed_row_fits_nothing_and_is_used_for_the_next_node() -> None:
    node = build.node("n")
    made = book(*build.put(node))
    row = made.nodes["n"].row
    made.apply(Gone(object=node))
    assert made.arrays.pods_free[row] == -1
    made.apply(Put(object=build.node("m")))
    assert made.nodes["m"].row == row


STEPS = st.lists(
    st.tuples(st.sampled_from(["bind", "end", "gone", "release", "inventory", "node-gone", "node"]), st.integers(0, 5)),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_the_columns_always_equal_what_the_entries_add_up_to(steps: list[tuple[str, int]]) -> None:
    made = book(*build.put(build.node("n"), build.node("m")))
    pods = {}
    for i, (what, which) in enumerate(steps):
        node = "n" if which % 2 else "m"
        match what:
            case "bind":
                pods[i] = build.bound(
                    build.gpu_pod(f"p{i}", memory="1Gi", requests={"cpu": "1"}), node, grant(f"g{i}", node, which % 2)
                )
                made.apply(Put(object=pods[i]))
            case "end" if pods:
                key = list(pods)[which % len(pods)]
                pods[key] = build.newer(pods[key], phase="Succeeded")
                made.apply(Put(object=pods[key]))
            case "gone" if pods:
                made.apply(Gone(object=pods.pop(list(pods)[which % len(pods)])))
            case "release" if made.grants:
                made.release(list(made.grants)[which % len(made.grants)])
            case "inventory":
                made.put_inventory(build.inventory(node, gpus=1 + which % 3, generation=i + 2))
            case "node-gone":
                made.apply(Gone(object=build.node(node)))
            case "node":
                made.apply(Put(object=build.node(node)))
        _audit(made)


def _audit(made: Book) -> None:
    for node in made.nodes.values():
        cpu = sum(s.demand.cpu_milli for s in made.pods.values() if s.charged == node.name)
        assert node.cpu_used == cpu
        if node.object is not None:
            assert made.arrays.cpu_free[node.row] == node.cpu_total - cpu
        for room in node.gpus:
            taken = [
                s
                for g in made.grants.values()
                for c in g.grant.containers.values()
                for s in c.gpus
                if (s.node, s.uuid) == (node.name, room.uuid)
            ]
            assert room.free_mib == room.total_mib - sum(s.memory_mib for s in taken)
            assert room.containers == len(taken)
            if room.usable:
                assert made.arrays.gpu_free_mib[node.row, room.column] == room.free_mib
                assert made.arrays.gpu_free_milli[node.row, room.column] == room.free_milli
        assert np.count_nonzero(made.arrays.gpu_total_mib[node.row]) == len(node.gpus)


def test_an_end_that_is_reported_twice_is_one_end() -> None:
    """Otherwise its grant was booked once more, and the GPU had less for ever."""
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    made = book(*build.put(build.node("n")))
    made.put_inventory(build.inventory("n", gpus=1))
    before = free(made)
    for fact in (Put(object=pod), Gone(object=pod), Gone(object=pod)):
        made.apply(fact)
    assert free(made) == (before[0] - 1024, before[1] - 100), "its node has not given it back yet"
    made.release("g")
    assert free(made) == before
