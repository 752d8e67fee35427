"""Facts in, grants and holds out."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.book.book import Book
from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension, encode_suspension
from tests.support import build


def grant(grant_id: str, node: str = "n", gpu: int = 0, mib: int = 1024, milli: int = 100) -> Grant:
    share = GpuShare(node=node, uuid=f"{node}-gpu-{gpu}", memory_mib=mib, compute_milli=milli)
    return Grant(grant_id=grant_id, term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})


def make_book(*facts: object) -> Book:
    book = Book()
    for fact in facts:
        book.apply(fact)  # type: ignore[arg-type]
    return book


def free(made: Book, node: str = "n", gpu: int = 0) -> tuple[int, int]:
    room = made.nodes[node].gpus[gpu]
    return room.free_mib, room.free_milli


def test_an_older_version_of_an_object_changes_nothing() -> None:
    old = build.pod("p", requests={"cpu": "1"})
    new = build.bound(old, "n")
    book = make_book(*build.put(build.node("n"), new))
    assert book.apply(Put(object=old)) == []
    assert book.nodes["n"].cpu_used == 1000


def test_a_grant_is_counted_whether_its_node_is_known_before_or_after() -> None:
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    for order in ("pod first", "node first"):
        book = Book()
        if order == "node first":
            book.put_inventory(build.inventory("n", gpus=1))
        for fact in build.put(pod, build.node("n")):
            book.apply(fact)
        book.put_inventory(build.inventory("n", gpus=1))
        assert free(book) == (81920 - 1024, 900), order


def test_a_grant_on_a_gpu_that_was_replaced_takes_nothing_of_the_new_one() -> None:
    book = make_book(*build.put(build.node("n"), build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g", gpu=7))))
    book.put_inventory(build.inventory("n", gpus=1))
    assert free(book) == (81920, 1000)


def test_overbooking_by_other_schedulers_is_reported() -> None:
    pods = [build.bound(build.gpu_pod(f"p{i}", gpus=1), "n", grant(f"g{i}", mib=81920, milli=1000)) for i in range(2)]
    book = make_book(*build.put(build.node("n"), *pods))
    book.put_inventory(build.inventory("n", gpus=1))
    assert book.overbooked() == ["n/n-gpu-0"]


def test_an_edited_grant_annotation_on_a_bound_pod_changes_nothing() -> None:
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    book = make_book(*build.put(build.node("n"), pod))
    book.put_inventory(build.inventory("n", gpus=1))
    book.apply(Put(object=build.newer(pod, annotations={})))
    assert free(book) == (81920 - 1024, 900)


def test_a_resized_pod_is_charged_what_it_needs_now() -> None:
    import msgspec

    pod = build.bound(build.pod("p", requests={"cpu": "1"}), "n")
    book = make_book(*build.put(build.node("n"), pod))
    bigger = msgspec.structs.replace(
        build.newer(pod),
        spec=msgspec.structs.replace(pod.spec, containers=build.pod("p", requests={"cpu": "3"}).spec.containers),
    )
    book.apply(Put(object=bigger))
    assert book.nodes["n"].cpu_used == 3000


def test_foreign_memory_is_not_given_away() -> None:
    import msgspec

    book = make_book(*build.put(build.node("n")))
    seen = build.inventory("n", gpus=1)
    book.put_inventory(msgspec.structs.replace(seen, gpus=(msgspec.structs.replace(seen.gpus[0], foreign_mib=10_000),)))
    assert free(book) == (71920, 1000)


def test_a_snapshot_of_known_state_changes_nothing() -> None:
    facts = build.put(
        build.node("n"),
        build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g")),
        build.gpu_pod("q", memory="1Gi"),
    )
    book = make_book(*facts)
    before = book.digest()
    assert [c for c in book.apply_snapshot(facts) if c.kind in ("void", "bound", "ended")] == []
    assert book.digest() == before


def test_objects_that_a_snapshot_lacks_are_removed() -> None:
    pod, node = build.bound(build.pod("p", requests={"cpu": "1"}), "n"), build.node("n")
    book = make_book(*build.put(node, pod))
    assert [c.kind for c in book.apply_snapshot(build.put(node)) if c.name == pod.metadata.uid] == ["ended"]
    assert book.nodes["n"].cpu_used == 0


def test_a_hold_of_a_pod_that_a_snapshot_lacks_waits_for_its_node() -> None:
    """The pod's deletion was not seen: it may have been bound, and started, between its last state and its end."""
    pod = build.gpu_pod("p", memory="1Gi", requests={"cpu": "1"})
    book = make_book(*build.put(build.node("n"), pod))
    book.put_inventory(build.inventory("n", gpus=1))
    book.hold(pod.metadata.uid, "n", grant("g"))
    changes = book.apply_snapshot(build.put(build.node("n")))
    assert [(c.kind, c.grant_id) for c in changes if c.name == pod.metadata.uid] == [("ended", "g")]
    assert (book.grants["g"].phase, free(book)) == ("leaving", (81920 - 1024, 900))
    assert book.nodes["n"].cpu_used == 0
    book.release("g")
    assert free(book) == (81920, 1000)


def test_a_pod_that_is_bound_by_another_decision_frees_the_one_that_was_decided() -> None:
    """Its Binding named another grant: the held one can never succeed at this version."""
    pod = build.gpu_pod("p", memory="1Gi")
    book = make_book(*build.put(build.node("n"), pod))
    book.put_inventory(build.inventory("n", gpus=2))
    book.hold(pod.metadata.uid, "n", grant("decided", gpu=0))
    book.apply(Put(object=build.bound(pod, "n", grant("older", gpu=1))))
    assert {held.grant_id: held.phase for held in book.grants.values()} == {"older": "bound"}
    assert (free(book, gpu=0), free(book, gpu=1)) == ((81920, 1000), (81920 - 1024, 900))


def test_a_pod_that_another_scheduler_binds_without_a_grant_frees_the_decided_grant() -> None:
    pod = build.gpu_pod("p", memory="1Gi")
    book = make_book(*build.put(build.node("n"), pod))
    book.put_inventory(build.inventory("n", gpus=1))
    book.hold(pod.metadata.uid, "n", grant("decided"))
    book.apply(Put(object=build.bound(pod, "n")))
    assert (book.grants, free(book)) == ({}, (81920, 1000))


def test_a_released_grant_is_not_booked_again_when_its_pod_ends() -> None:
    """Its annotation stays on the pod to the end."""
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    book = make_book(*build.put(build.node("n"), pod))
    book.put_inventory(build.inventory("n", gpus=1))
    book.release("g")
    book.apply(Put(object=build.newer(pod, phase="Succeeded")))
    assert (book.grants, free(book)) == ({}, (81920, 1000))


def test_an_older_inventory_of_the_same_boot_changes_nothing() -> None:
    book = make_book(*build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=2, generation=5))
    book.put_inventory(build.inventory("n", gpus=1, generation=4))
    assert len(book.nodes["n"].gpus) == 2
    book.put_inventory(build.inventory("n", gpus=1, generation=1, boot="boot-2"))
    assert len(book.nodes["n"].gpus) == 1, "numbers start again with a boot"


def test_a_pod_whose_grant_is_returned_is_not_suspended_any_more() -> None:
    """Nothing of it runs or is on the host, and it has no turn to wait for, whatever its annotation says."""
    suspended = encode_suspension(Suspension(plan_id="p", action="checkpoint"))
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"), **{names.ANNOTATION_SUSPENDED: suspended})
    book = make_book(*build.put(build.node("n"), pod))
    (state,) = book.pods.values()
    assert (state.suspension is not None, book.parked) == (True, {"g"})
    book.release("g")
    assert (state.suspension, book.parked) == (None, set())
    meta = msgspec.structs.replace(pod.metadata, labels={"edited": "1"})
    book.apply(Put(object=build.newer(msgspec.structs.replace(pod, metadata=meta))))
    assert book.pods[state.uid] is not state, "it was read anew"
    assert book.pods[state.uid].suspension is None


def test_generations_begin_anew_after_a_lost_checkpoint() -> None:
    book = make_book(*build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=2, generation=5))
    anew = msgspec.structs.replace(build.inventory("n", gpus=1, generation=1), checkpoint_id="b")
    book.put_inventory(anew)
    assert len(book.nodes["n"].gpus) == 1


def test_a_freed_row_fits_nothing_and_is_used_for_the_next_node() -> None:
    node = build.node("n")
    book = make_book(*build.put(node))
    row = book.nodes["n"].row
    book.apply(Gone(object=node))
    assert book.arrays.pods_free[row] == -1
    book.apply(Put(object=build.node("m")))
    assert book.nodes["m"].row == row


STEPS = st.lists(
    st.tuples(st.sampled_from(["bind", "end", "gone", "release", "inventory", "node-gone", "node"]), st.integers(0, 5)),
    max_size=40,
)


@settings(max_examples=80)
@given(STEPS)
def test_the_columns_always_equal_what_the_entries_add_up_to(steps: list[tuple[str, int]]) -> None:
    book = make_book(*build.put(build.node("n"), build.node("m")))
    pods = {}
    for i, (what, which) in enumerate(steps):
        node = "n" if which % 2 else "m"
        match what:
            case "bind":
                pods[i] = build.bound(
                    build.gpu_pod(f"p{i}", memory="1Gi", requests={"cpu": "1"}), node, grant(f"g{i}", node, which % 2)
                )
                book.apply(Put(object=pods[i]))
            case "end" if pods:
                key = list(pods)[which % len(pods)]
                pods[key] = build.newer(pods[key], phase="Succeeded")
                book.apply(Put(object=pods[key]))
            case "gone" if pods:
                book.apply(Gone(object=pods.pop(list(pods)[which % len(pods)])))
            case "release" if book.grants:
                book.release(list(book.grants)[which % len(book.grants)])
            case "inventory":
                book.put_inventory(build.inventory(node, gpus=1 + which % 3, generation=i + 2))
            case "node-gone":
                book.apply(Gone(object=build.node(node)))
            case "node":
                book.apply(Put(object=build.node(node)))
        _audit(book)


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


def test_a_place_that_is_reserved_twice_is_booked_once() -> None:
    book = Book()
    book.apply(Put(object=build.node("a")))
    book.apply(Put(object=(pod := build.pod("p", requests={"cpu": "2"}))))
    placeholder = book.pods[pod.metadata.uid].placeholder("kept")
    for _ in range(2):
        book.reserve(placeholder, "a", None)
    assert book.nodes["a"].cpu_used == 2000
    book.unreserve(placeholder)
    assert book.nodes["a"].cpu_used == 0


def test_an_end_that_is_reported_twice_is_one_end() -> None:
    """Otherwise its grant was booked once more, and the GPU had less for ever."""
    pod = build.bound(build.gpu_pod("p", memory="1Gi"), "n", grant("g"))
    book = make_book(*build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=1))
    before = free(book)
    for fact in (Put(object=pod), Gone(object=pod), Gone(object=pod)):
        book.apply(fact)
    assert free(book) == (before[0] - 1024, before[1] - 100), "its node has not given it back yet"
    book.release("g")
    assert free(book) == before
