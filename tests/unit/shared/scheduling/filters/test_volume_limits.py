"""How many volumes a node can attach: which pods fit beside those that are there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.book import Book
from shared.book.states import pod_state
from shared.contracts.facts import Put
from shared.model.objects import Pod, PodSpec
from shared.model.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from shared.scheduling.filters.volume_limits import VolumeLimits
from tests.support import build

DRIVER = "disks.example.com"


def pod(name: str, *claims: str, on: str = "") -> Pod:
    """With these claims, and a volume of another kind, which no driver attaches."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    body = {"containers": [{"name": "c"}], "volumes": [*volumes, {"name": "settings"}], "nodeName": on}
    return msgspec.structs.replace(build.pod(name), spec=msgspec.convert({**body, "schedulerName": "kerf"}, PodSpec))


def claim(name: str, *, volume: str = "", of: str = "made") -> PersistentVolumeClaim:
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    spec = {"storageClassName": of, "volumeName": volume}
    return msgspec.convert({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}, PersistentVolumeClaim)


def volume(name: str, *, driver: str = DRIVER, built_in: str = "") -> PersistentVolume:
    spec = {built_in: {"id": name}} if built_in else {"csi": {"driver": driver, "volumeHandle": name}} if driver else {}
    return msgspec.convert({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}, PersistentVolume)


def attaches(count: int | None, *, driver: str = DRIVER) -> CSINode:
    drivers = [{"name": driver, "nodeID": "n", "allocatable": {"count": count}}]
    return msgspec.convert({"kind": "CSINode", "metadata": {"name": "n"}, "spec": {"drivers": drivers}}, CSINode)


def verdict(asked: Pod, *others: Any) -> str:
    """The reason against node n, as text; empty if there is none."""
    book = Book()
    classes = (
        msgspec.convert({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": by}, StorageClass)
        for name, by in {"made": DRIVER, "gp2": "kubernetes.io/aws-ebs"}.items()
    )
    for thing in (build.node("n"), *classes, *others):
        book.apply(Put(object=thing))
    check = VolumeLimits().prepare(pod_state(asked), book)
    reason = None if check is None else check(book.nodes["n"])
    assert reason is None or (reason.code == "volume-limit" and reason.helps)
    return "" if reason is None else reason.sentence


TAKEN = (claim("a", volume="v"), volume("v"), pod("first", "a", on="n"))
"""A pod with one volume on the node."""


@pytest.mark.parametrize(
    ("behaviour", "asked", "others", "fits"),
    [
        ("one that is left is enough", pod("p", "b"), [claim("b", volume="w"), volume("w"), attaches(2)], True),
        ("none is not", pod("p", "b"), [claim("b", volume="w"), volume("w"), attaches(1)], False),
        ("the same volume counts once", pod("p", "a"), [attaches(1)], True),
        ("one that is there needs no room", pod("p", "a"), [attaches(0)], True),
        ("by another claim too", pod("p", "b"), [claim("b", volume="v"), attaches(1)], True),
        ("one that is yet to be made counts", pod("p", "b"), [claim("b"), attaches(1)], False),
        ("the pod's own are counted together", pod("p", "b", "c"), [claim("b"), claim("c"), attaches(2)], False),
        ("each driver has its own limit", pod("p", "b"), [claim("b"), attaches(1, driver="other")], True),
        (
            "volumes of other drivers do not count",
            pod("p", "b"),
            [claim("b", volume="w"), volume("w", driver="other"), attaches(1)],
            True,
        ),
        ("a volume without a driver does not", pod("p", "b"), [claim("b", volume="w"), volume("w", driver="")], True),
        (
            "what was built in has a driver now",
            pod("p", "b"),
            [claim("b", of="gp2"), attaches(0, driver="ebs.csi.aws.com")],
            False,
        ),
        (
            "and its volumes too",
            pod("p", "b"),
            [
                claim("b", volume="w"),
                volume("w", built_in="gcePersistentDisk"),
                attaches(0, driver="pd.csi.storage.gke.io"),
            ],
            False,
        ),
        (
            "a volume that is not known yet counts by its class",
            pod("p", "b"),
            [claim("b", volume="w"), attaches(1)],
            False,
        ),
        ("a driver may name no limit", pod("p", "b"), [claim("b"), attaches(None)], True),
        ("a node may have no drivers", pod("p", "b"), [claim("b")], True),
        ("zero is a limit", pod("p", "b"), [claim("b"), attaches(0)], False),
        ("a pod without claims fits", pod("p"), [attaches(0)], True),
    ],
)
def test_the_volumes_that_a_node_can_attach(behaviour: str, asked: Pod, others: list[Any], fits: bool) -> None:
    assert (verdict(asked, *TAKEN, *others) == "") is fits, behaviour


def test_the_reason_has_the_figures() -> None:
    text = verdict(pod("p", "a", "b", "c"), *TAKEN, claim("b"), claim("c"), attaches(2))
    assert text == f"the node can attach 2 volumes of {DRIVER}, pods there have 1, and the pod brings 2"
