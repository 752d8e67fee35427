"""Claims on the book, in decisions, and in ResourceSlices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.engine.engine import Engine
from services.placement.explain.pending_reasons import condition_reason
from services.placement.protocol.resource_slices import PUBLISH_AGAIN_S, Slices
from services.placement.scheduling.claims import allocations, with_claims
from shared.book.book import Book, Change
from shared.contracts.commands import PublishSlice
from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.claims import ResourceClaim, ResourceSlice
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import Meta
from shared.model.objects import PodClaim
from shared.scheduling.filters.claims_in_use import ClaimsInUse
from shared.scheduling.filters.device_claims import DeviceClaims
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import why


def claim(name: str = "c", version: str = "", **capacity: str) -> ResourceClaim:
    exactly = {"deviceClassName": names.DEVICE_CLASS, "capacity": {"requests": capacity}}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": version or build.next_version()}
    return msgspec.convert(
        {
            "kind": "ResourceClaim",
            "metadata": meta,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        },
        ResourceClaim,
    )


def waiting(book: Book, **rest: Any) -> str:
    pod = build.pod(resource_claims=(PodClaim(name="mine", resource_claim_name="c"),), **rest)
    book.apply(Put(object=pod))
    return pod.metadata.uid


def test_a_pod_waits_for_its_claim_and_is_tried_when_it_comes() -> None:
    book = Book()
    uid = waiting(book)
    assert book.pods[uid].refusal_code == "claim-missing"
    assert Change("pending", uid) in book.apply(Put(object=claim(memory="16Gi")))
    request = book.pods[uid].request
    assert request is not None
    assert request.asks["claim/mine/gpu"].memory_mib == 16_384


def test_an_unchanged_claim_changes_nothing() -> None:
    book = Book()
    waiting(book)
    book.apply(Put(object=claim()))
    assert book.apply(Put(object=claim())) == [Change("other", "ResourceClaim")]


def test_a_deleted_claim_removes_the_request() -> None:
    book = Book()
    uid = waiting(book)
    book.apply(Put(object=claim()))
    assert Change("pending", uid) in book.apply(Gone(object=claim()))
    assert book.pods[uid].request is None


def test_a_decision_names_the_version_that_it_was_made_on() -> None:
    book = Book()
    book.apply(Put(object=build.node()))
    book.put_inventory(build.inventory(gpus=2))
    uid = waiting(book)
    book.apply(Put(object=claim(version="77", memory="16Gi")))
    share = GpuShare(node="n", uuid="n-gpu-1", memory_mib=16_384, compute_milli=0)
    containers = with_claims(
        {"claim/mine/gpu": ContainerGrant(strategy="advisory", gpus=(share,))}, book.pods[uid], book
    )
    assert containers["claim/mine/gpu"].claim == "uid-c"
    (order,) = allocations(book.pods[uid], Grant(grant_id="g", term=1, containers=containers), book)
    assert (order.name, order.uid, order.resource_version) == ("c", "uid-c", "77")
    assert [(d.request, d.pool, d.device, d.memory_mib) for d in order.devices] == [("gpu", "n", "gpu-1", 16_384)]


def test_share_ids_do_not_depend_on_the_process_that_executes_the_decision() -> None:
    book = Book()
    book.put_inventory(build.inventory(gpus=1))
    uid = waiting(book)
    book.apply(Put(object=claim()))
    part = ContainerGrant(
        strategy="exclusive",
        gpus=(GpuShare(node="n", uuid="n-gpu-0", memory_mib=1, compute_milli=1000),),
        claim="uid-c",
    )
    ids = [
        allocations(book.pods[uid], Grant(grant_id=grant, term=1, containers={"claim/mine/gpu": part}), book)[0]
        .devices[0]
        .share_id
        for grant in ("g", "g", "h")
    ]
    assert ids[0] == ids[1] != ids[2]


def test_a_pod_with_claims_fits_only_on_nodes_that_serve_claims() -> None:
    book = Book()
    uid = waiting(book)
    book.apply(Put(object=claim()))
    for name, dra in (("without", False), ("with", True)):
        book.apply(Put(object=build.node(name)))
        book.put_inventory(msgspec.structs.replace(build.inventory(name), dra=dra))
    check = DeviceClaims().prepare(book.pods[uid], book)
    assert check is not None
    refused = check(book.nodes["without"])
    assert refused is not None
    assert refused.code == "no-dra"
    assert check(book.nodes["with"]) is None


def test_a_node_that_has_yet_to_release_the_claim_of_another_pod_is_left_out() -> None:
    """The pod was deleted by force and its process still runs: its kubelet has the claim prepared, and would give its
    devices to the claim's next pod."""
    placement = Placement()
    for name in ("n", "m"):
        placement.facts(build.node(name))
        placement.send(m.InventorySeen(msgspec.structs.replace(build.inventory(name, gpus=1), dra=True)))
    mine = (PodClaim(name="mine", resource_claim_name="c"),)
    placement.facts(claim(memory="16Gi"))
    before, after = (build.pod(name, resource_claims=mine) for name in ("before", "after"))
    placement.facts(before)
    bound = placement.bind(before)
    placement.gone(bound)
    assert placement.core.book.leaving
    placement.facts(after)
    place = placement.binds()[after.metadata.uid].node
    assert place != bound.spec.node_name
    check = ClaimsInUse().prepare(placement.core.book.pods[after.metadata.uid], placement.core.book)
    assert check is not None
    refused = check(placement.core.book.nodes[bound.spec.node_name])
    assert refused is not None
    assert (refused.code, "team/before" in refused.sentence) == ("claim-on-node", True)
    assert check(placement.core.book.nodes[place]) is None, "its own grant"


@pytest.mark.parametrize("first", ["without", "with"])
def test_nodes_that_serve_claims_are_told_from_equal_nodes_that_do_not(first: str) -> None:
    """Whichever of them is checked first for the class that they would otherwise share."""
    book = Book()
    uid = waiting(book)
    book.apply(Put(object=claim()))
    for name in sorted(("without", "with"), key=lambda name: name != first):
        book.apply(Put(object=build.node(name)))
        book.put_inventory(msgspec.structs.replace(build.inventory(name), dra=name == "with"))
        book.set_agent_trouble(name, "")
    place = Engine(book, "kerf").decide(book.pods[uid])
    assert place is not None
    assert (place.node, place.feasible_nodes) == ("with", 1)


def published(book: Book, order: PublishSlice) -> None:
    meta = Meta(
        name=f"{order.node}-{names.DRA_DRIVER}",
        resource_version=build.next_version(),
        annotations={names.ANNOTATION_INVENTORY: order.mark},
    )
    book.apply(Put(object=msgspec.structs.replace(ResourceSlice(), metadata=meta)))


def served(driver_version: str = "580.65.06") -> Any:
    return msgspec.structs.replace(
        build.inventory(gpus=1), dra=True, driver_version=driver_version, cuda_version="13.0"
    )


def test_a_slice_is_ordered_once_and_again_when_it_is_lost_or_out_of_date() -> None:
    book = Book()
    book.apply(Put(object=build.node()))
    book.put_inventory(served())
    slices = Slices(book)
    (order,) = slices.due(0.0)
    assert order.devices[0].versions == {"driverVersion": "580.65.6", "cudaDriverVersion": "13.0.0"}
    assert slices.due(1.0) == []
    published(book, order)
    assert slices.due(PUBLISH_AGAIN_S) == []
    book.put_inventory(served(driver_version="590.1"))
    (newer,) = slices.due(PUBLISH_AGAIN_S + 1)
    assert newer.mark != order.mark
    published(book, newer)
    del book.others["ResourceSlice"][f"n-{names.DRA_DRIVER}"]
    assert [o.mark for o in slices.due(2 * PUBLISH_AGAIN_S + 1)] == [newer.mark]


def test_nodes_beyond_what_is_published_at_once_follow_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.placement.protocol.resource_slices.PUBLISH_AT_ONCE", 2)
    book = Book()
    for name in "abc":
        book.apply(Put(object=build.node(name)))
        book.put_inventory(msgspec.structs.replace(build.inventory(name), dra=True))
    slices = Slices(book)
    assert [[order.node for order in slices.due(now)] for now in (0.0, 0.1, 0.2)] == [["a", "b"], ["c"], []]


def test_nodes_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autoscaled nodes have another name each time."""
    book = Book()
    slices = Slices(book)
    for number in range(3):
        node = build.node(f"n{number}")
        book.apply(Put(object=node))
        book.put_inventory(msgspec.structs.replace(build.inventory(f"n{number}"), dra=True))
        assert [order.node for order in slices.due(10.0 * number)] == [f"n{number}"]
        del book.nodes[f"n{number}"]
    slices.due(100.0)
    assert (slices._marks, slices._ordered) == ({}, {})


def test_a_claim_concerns_the_unbound_pods_that_name_it_alone() -> None:
    """An event of a claim comes several times with each pod that has one, of other drivers too."""
    book = Book()
    uid = waiting(book)
    assert book._claimants.of("team/c") == [uid]
    pod = book.pods[uid].pod
    spec = msgspec.structs.replace(pod.spec, node_name="n")
    meta = msgspec.structs.replace(pod.metadata, resource_version=build.next_version())
    book.apply(Put(object=msgspec.structs.replace(pod, spec=spec, metadata=meta)))
    assert book._claimants.of("team/c") == []
    other = waiting(book, name="other")
    assert book._claimants.of("team/c") == [other]
    book.apply(Gone(object=book.pods[other].pod))
    assert (book._claimants._pods, book._claimants._paths) == ({}, {})


@pytest.mark.parametrize("version", ["", "x", "580." + "9" * 5000], ids=["none", "word", "5000 digits"])
def test_a_version_that_is_none_is_left_out(version: str) -> None:
    book = Book()
    book.apply(Put(object=build.node()))
    book.put_inventory(served(driver_version=version))
    (order,) = Slices(book).due(0.0)
    assert order.devices[0].versions == {"cudaDriverVersion": "13.0.0"}


def test_nodes_that_serve_no_claims_publish_nothing() -> None:
    book = Book()
    book.apply(Put(object=build.node()))
    book.put_inventory(build.inventory())
    assert Slices(book).due(0.0) == []


@pytest.mark.parametrize("shared", [True, False])
def test_members_of_a_gang_that_name_one_claim_are_refused_by_name(shared: bool) -> None:
    """One of them was bound, and the gang never ran."""
    placement = Placement()
    for node in ("n1", "n2"):
        placement.facts(build.node(node))
        placement.send(m.InventorySeen(msgspec.structs.replace(build.inventory(node, gpus=4), dra=True)))
    placement.facts(claim("c", memory="16Gi"), claim("d", memory="16Gi"))
    pods = [
        build.pod(
            name,
            annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"},
            resource_claims=(PodClaim(name="mine", resource_claim_name="c" if shared else its_own),),
        )
        for name, its_own in (("a", "c"), ("b", "d"))
    ]
    assert len(placement.place(*pods)) == (0 if shared else 2)
    if shared:
        explanation = why(placement, "a")
        assert explanation.summary[0].code == "gang-shares-claim"
        assert "pods a and b name one ResourceClaim, team/c" in explanation.sentence
        assert condition_reason(explanation) == "GangIncomplete"
