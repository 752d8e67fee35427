"""Claims and volumes, case by case: which nodes a pod can use, which volume a claim gets, and which orders are sent for
it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.scheduling.late_claims import REPEAT_S, LateClaims
from services.placement.scheduling.queue import Queue
from shared.book.book import Book, Change
from shared.book.states import pod_state
from shared.contracts.facts import Gone, Put
from shared.model.objects import Pod, PodSpec
from shared.model.storage import (
    SELECTED_NODE,
    CSIDriver,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from shared.scheduling.filters import filters
from shared.scheduling.filters.volumes import choose_volumes
from tests.support import build

Spec = dict[str, Any]


def pod(*claims: str, name: str = "p", on: str = "", **spec: Any) -> Pod:
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    body = {"containers": [{"name": "c"}], "volumes": volumes, "nodeName": on, "schedulerName": "kerf", **spec}
    return msgspec.structs.replace(build.pod(name), spec=msgspec.convert(body, PodSpec))


def claim(
    name: str = "data",
    *,
    kind: str = "late",
    size: str = "5Gi",
    volume: str = "",
    phase: str = "Pending",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> PersistentVolumeClaim:
    body = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": kind,
        "resources": {"requests": {"storage": size}},
        "volumeName": volume,
        **spec,
    }
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations or {}}
    return msgspec.convert(
        {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": body, "status": {"phase": phase}},
        PersistentVolumeClaim,
    )


def volume(
    name: str,
    on: str = "n",
    *,
    size: str = "10Gi",
    phase: str = "Available",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> PersistentVolume:
    line = {"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [line]}]}} if on else None
    body = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "nodeAffinity": affinity,
        **spec,
    }
    return msgspec.convert(
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": body,
            "status": {"phase": phase},
        },
        PersistentVolume,
    )


def storage(
    name: str, *, mode: str = "WaitForFirstConsumer", provisioner: str = "kubernetes.io/no-provisioner", **rest: Any
) -> StorageClass:
    body = {
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        **rest,
    }
    return msgspec.convert(body, StorageClass)


def counts(storage_capacity: bool = True) -> CSIDriver:
    """The driver of the classes that provision: whether it says how much space it has."""
    body = {
        "kind": "CSIDriver",
        "metadata": {"name": "example.com/disks"},
        "spec": {"storageCapacity": storage_capacity},
    }
    return msgspec.convert(body, CSIDriver)


def space(size: str | None, of: str = "made", *, zone: str = "a", **rest: Any) -> CSIStorageCapacity:
    body = {
        "kind": "CSIStorageCapacity",
        "metadata": {"name": f"space-{of}-{zone}", "namespace": "storage"},
        "storageClassName": of,
        "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}},
        "capacity": size,
        **rest,
    }
    return msgspec.convert(body, CSIStorageCapacity)


def book_of(*others: Any) -> Book:
    book = Book()
    zone = "topology.kubernetes.io/zone"
    nodes = (build.node("n", labels={zone: "a"}), build.node("o", labels={zone: "b"}))
    topologies = [{"matchLabelExpressions": [{"key": zone, "values": ["b"]}]}]
    classes = (
        storage("late"), storage("now", mode="Immediate"), storage("made", provisioner="example.com/disks"),
        storage("made-in-b", provisioner="example.com/disks", allowedTopologies=topologies),
    )  # fmt: skip
    for thing in (*nodes, *classes, *others):
        book.apply(Put(object=thing))
    return book


def verdict(asked: Pod, *others: Any, on: str = "n") -> str:
    book = book_of(*others)
    for kind in filters().cluster:
        check = kind.prepare(pod_state(asked), book)
        reason = None if check is None else check(book.nodes[on])
        if reason is not None:
            assert reason.helps
            return reason.code
    return ""


def reference(name: str, uid: str = "") -> Spec:
    return {"claimRef": {"namespace": "team", "name": name, "uid": uid}}


@pytest.mark.parametrize(
    ("behaviour", "others", "code"),
    [
        ("a claim must exist", [], "claim-missing"),
        ("a lost claim is of no use", [claim(phase="Lost")], "claim-lost"),
        ("an immediate claim waits for its binder", [claim(kind="now")], "claim-unbound"),
        ("a bound claim leads to its volume's node", [claim(volume="v"), volume("v", phase="Bound")], ""),
        ("and excludes others", [claim(volume="v"), volume("v", "o", phase="Bound")], "volume-elsewhere"),
        ("a bound claim's volume must exist", [claim(volume="v")], "volume-missing"),
        (
            "a volume's zone label binds too",
            [claim(volume="v"), volume("v", "", labels={"topology.kubernetes.io/zone": "b"})],
            "volume-elsewhere",
        ),
        (
            "a zone label may name several",
            [claim(volume="v"), volume("v", "", labels={"topology.kubernetes.io/zone": "b__a"})],
            "",
        ),
        ("a late claim needs a free volume on the node", [claim()], "no-volume"),
        ("one there is enough", [claim(), volume("v")], ""),
        ("one elsewhere is not", [claim(), volume("v", "o")], "no-volume"),
        ("a volume that is too small is none", [claim(), volume("v", size="4Gi")], "no-volume"),
        ("a volume of another class is none", [claim(), volume("v", storageClassName="now")], "no-volume"),
        ("a volume without the access mode is none", [claim(), volume("v", accessModes=["ReadOnlyMany"])], "no-volume"),
        (
            "a released volume is none",
            [claim(), volume("v", phase="Released", **reference("data", "uid-old"))],
            "no-volume",
        ),
        ("a volume of another claim does not count", [claim(), volume("v", **reference("other"))], "no-volume"),
        ("a selector must match", [claim(selector={"matchLabels": {"fast": "yes"}}), volume("v")], "no-volume"),
        (
            "a matching selector does",
            [claim(selector={"matchLabels": {"fast": "yes"}}), volume("v", labels={"fast": "yes"})],
            "",
        ),
        (
            "the volume that is reserved for the claim decides",
            [claim(), volume("v"), volume("w", "o", **reference("data"))],
            "volume-elsewhere",
        ),
        (
            "its own reservation is no hindrance",
            [claim(), volume("v", phase="Bound", **reference("data", "uid-data"))],
            "",
        ),
        (
            "a reservation for an earlier claim of that name is",
            [claim(), volume("v", **reference("data", "uid-old"))],
            "no-volume",
        ),
        ("a class that provisions needs no volume", [claim(kind="made")], ""),
        ("but only where it provisions", [claim(kind="made-in-b")], "class-elsewhere"),
        ("a driver that counts its space needs to have some", [claim(kind="made"), counts()], "no-storage-capacity"),
        ("enough near the node will do", [claim(kind="made"), counts(), space("5Gi")], ""),
        ("less will not", [claim(kind="made"), counts(), space("4Gi")], "no-storage-capacity"),
        ("nor does it elsewhere", [claim(kind="made"), counts(), space("9Gi", zone="b")], "no-storage-capacity"),
        ("nor of another class", [claim(kind="made"), counts(), space("9Gi", "other")], "no-storage-capacity"),
        (
            "nor in pieces that are too small",
            [claim(kind="made"), counts(), space("9Gi", maximumVolumeSize="4Gi")],
            "no-storage-capacity",
        ),
        (
            "a driver may name the largest alone",
            [claim(kind="made"), counts(), space(None, maximumVolumeSize="5Gi")],
            "",
        ),
        ("one that names nothing has no space", [claim(kind="made"), counts(), space(None)], "no-storage-capacity"),
        ("a driver that counts nothing is not asked", [claim(kind="made"), counts(False)], ""),
        (
            "what is being made on the node may have taken the space",
            [claim(kind="made", annotations={SELECTED_NODE: "n"}), counts(), space("0")],
            "",
        ),
    ],
)
def test_the_nodes_that_a_claim_allows_its_pod(behaviour: str, others: list[Any], code: str) -> None:
    assert verdict(pod("data"), *others) == code, behaviour


def test_space_is_for_all_claims_that_wait_for_volumes_on_the_node() -> None:
    """kube-scheduler looks at each by itself, and the driver then refuses what it has no space for."""
    mine, theirs = claim("one", kind="made"), claim("two", kind="made")
    assert verdict(pod("one", "two"), mine, theirs, counts(), space("9Gi")) == "no-storage-capacity"
    assert verdict(pod("one", "two"), mine, theirs, counts(), space("10Gi")) == ""
    other = pod("two", name="first", on="n")
    assert verdict(pod("one"), mine, theirs, other, counts(), space("9Gi")) == "no-storage-capacity"
    made = claim("two", kind="made", volume="v")
    assert verdict(pod("one"), mine, made, volume("v", phase="Bound"), other, counts(), space("9Gi")) == ""


@pytest.mark.parametrize(
    ("before", "now", "wakes"),
    [("4Gi", "5Gi", True), ("5Gi", "4Gi", False), ("5Gi", "5Gi", False), (None, "5Gi", True)],
)
def test_less_space_for_volumes_concerns_no_waiting_pod(before: str | None, now: str, wakes: bool) -> None:
    book = book_of(space(before))
    assert book.apply(Put(object=space(now))) == ([Change("other", "CSIStorageCapacity")] if wakes else [])
    assert book.apply(Gone(object=space(now))) == []


def test_two_claims_need_two_volumes_of_the_node() -> None:
    claims = (claim("one"), claim("two"))
    assert verdict(pod("one", "two"), *claims, volume("v"), volume("w", "o")) == "no-volume"
    assert verdict(pod("one", "two"), *claims, volume("v"), volume("w")) == ""


def test_small_claims_choose_first_and_take_the_smallest_that_fits() -> None:
    claims = [claim("large", size="20Gi"), claim("small", size="1Gi")]
    book = book_of(*claims, volume("a", size="50Gi"), volume("b", size="20Gi"), volume("c", size="5Gi"))
    assert choose_volumes(claims, book.nodes["n"], book) == {"small": "c", "large": "b"}


def test_a_claim_for_one_pod_alone_is_in_use_by_that_pod() -> None:
    alone = [claim(volume="v", accessModes=["ReadWriteOncePod"]), volume("v", phase="Bound")]
    assert verdict(pod("data"), *alone, pod("data", name="first", on="n")) == "claim-in-use"
    assert verdict(pod("data"), *alone, build.newer(pod("data", name="first", on="n"), phase="Succeeded")) == ""


def test_an_in_tree_disk_is_written_by_one_pod_of_a_node() -> None:
    disk = [{"name": "d", "gcePersistentDisk": {"pdName": "x"}}]
    assert verdict(pod(volumes=disk), pod(name="first", on="n", volumes=disk)) == "disk-in-use"
    assert verdict(pod(volumes=disk), pod(name="first", on="o", volumes=disk)) == ""


def test_the_order_for_a_claim_is_sent_once_and_again_when_it_may_be_lost() -> None:
    book = book_of(claim(), volume("v"), pod("data"))
    state = book.pods["uid-team-p"]
    late_claims = LateClaims(book)
    claims = late_claims.of(state, "n")
    assert [(c.claim, c.node, c.volume) for c in claims] == [("data", "n", "v")]
    assert late_claims.select(state.uid, claims, 100.0) == [m.SendPatches(claims)]
    assert late_claims.select(state.uid, claims, 101.0) == []
    assert late_claims.repeat(100.0 + REPEAT_S) == [m.SendPatches(claims)]
    book.apply(Put(object=claim(volume="v")))
    assert late_claims.of(state, "n") == ()
    assert late_claims.repeat(100.0 + 3 * REPEAT_S) == []


def test_a_pod_that_waits_for_its_volumes_always_gets_a_short_pause() -> None:
    """Any other pod that does not fit pauses longer each time."""
    queue, state = Queue(), pod_state(pod("data"))
    queue.add(state, b"shape", plain=False)
    for tried in range(5):
        queue.mark_unschedulable(state.uid, float(tried), pause_s=0.2)
        queue.wake(lambda _: True)
        assert queue.next_pause_end() == tried + 0.2
    queue.mark_unschedulable(state.uid, 10.0)
    queue.wake(lambda _: True)
    assert queue.next_pause_end() == 11.0
