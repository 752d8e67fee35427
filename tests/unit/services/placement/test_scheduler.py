"""Which waiting pods are tried again, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from shared.model import names
from shared.model.affinity import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from shared.model.claims import ResourceClaim, ResourceClaimSpec
from shared.model.kube_object import Meta
from shared.model.objects import Pod, PodClaim
from tests.support import build
from tests.support.harness.placement import Placement

SELECTS = LabelSelector(match_labels={"app": "db"})
TERM = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=SELECTS)
NEAR_DB = Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(TERM,)))
CLIENT = build.pod("client", requests={"cpu": "1"}, affinity=NEAR_DB)
PAUSE_S = 11.0
"""Longer than any pause of a pod that does not fit."""


def is_placed(placement: Placement, pod: Pod) -> bool:
    return bool(placement.core.book.pods[pod.metadata.uid].charged)


def db(**fields: Any) -> Pod:
    return build.pod("db", requests={"cpu": "1"}, **{"labels": {"app": "db"}, **fields})


@pytest.mark.parametrize("foreign", [False, True])
def test_a_pod_that_came_before_the_one_it_wants_to_be_near_is_placed_after_it(foreign: bool) -> None:
    placement = Placement().nodes("n1", "n2")
    placement.facts(CLIENT)
    assert not is_placed(placement, CLIENT)
    if foreign:
        placement.facts(db(node="n1", phase="Running", scheduler="default-scheduler"))
    else:
        placement.facts(db())
    placement.tick(PAUSE_S)
    assert is_placed(placement, CLIENT)


def test_labels_that_a_running_pod_gets_help_a_pod_that_waits_for_them() -> None:
    placement = Placement().nodes("n1")
    running = db(labels={}, node="n1", phase="Running", scheduler="default-scheduler")
    placement.facts(running, CLIENT)
    assert not is_placed(placement, CLIENT)
    meta = msgspec.structs.replace(running.metadata, labels={"app": "db"}, resource_version=build.next_version())
    placement.facts(msgspec.structs.replace(running, metadata=meta))
    placement.tick(PAUSE_S)
    assert is_placed(placement, CLIENT)


def test_a_spread_that_kept_a_pod_out_is_looked_at_again_when_the_emptier_domain_has_filled() -> None:
    spread = (TopologySpreadConstraint(max_skew=1, topology_key="zone", label_selector=SELECTS),)
    placement = Placement().nodes()
    placement.facts(build.node("a", labels={"zone": "a"}), build.node("b", labels={"zone": "b"}, cpu="1"))
    first, second, third = (
        build.pod(name, requests={"cpu": cpu}, labels={"app": "db"}, topology_spread_constraints=constraints)
        for name, cpu, constraints in (("first", "2", ()), ("second", "2", spread), ("third", "500m", spread))
    )
    placement.facts(first)
    placement.facts(second)
    assert is_placed(placement, first)
    assert not is_placed(placement, second), "zone b is emptier, and has no room for it"
    placement.facts(third)
    placement.tick(PAUSE_S)
    assert is_placed(placement, second)


def test_a_pod_near_which_none_has_come_is_not_tried_for_every_other_one() -> None:
    placement = Placement().nodes("n1")
    placement.facts(CLIENT)
    placement.tick(PAUSE_S)
    tried = placement.core.stats.rejections
    for number in range(20):
        placement.facts(build.pod(f"p{number}", requests={"cpu": "10m"}))
    assert placement.core.stats.rejections - tried <= 1, "its pause bounds it"


def test_a_list_with_a_claim_and_without_the_pod_that_waited_for_it_ends_that_pod() -> None:
    """In the gap of a feed the claim was made and the pod deleted."""
    request = {"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 1}}
    claim = ResourceClaim(
        metadata=Meta(name="c", namespace="team", uid="cu", resource_version=build.next_version()),
        spec=msgspec.convert({"devices": {"requests": [request]}}, ResourceClaimSpec),
    )
    pod = build.pod("p", resource_claims=(PodClaim(name="g", resource_claim_name="c"),))
    placement = Placement().nodes("n")
    placement.facts(pod)
    placement.send(m.SnapshotSeen(build.put(build.node("n"), claim), 0))
    assert pod.metadata.uid not in placement.core.book.pods
    assert pod.metadata.uid not in placement.core.queue


def test_pods_of_a_queue_that_pause_are_each_tried_when_their_pause_ends() -> None:
    """The pause of the first one that ends must not be the last that is waited for."""
    placement = Placement(build.queues("queues: [{name: team}]")).nodes("n1")
    pods = [build.pod(f"p{i}", requests={"cpu": "10m"}, labels={names.LABEL_QUEUE: "team"}) for i in range(3)]
    for index, pod in enumerate(pods):
        placement.core.queue.pause_for(pod.metadata.uid, placement.now, 1.0 + index)
    placement.facts(*pods)
    for expected in (0, 1, 2, 3):
        assert sum(is_placed(placement, pod) for pod in pods) == expected
        placement.tick(1.0)


def test_a_gang_goes_to_gpus_on_which_all_of_it_is_within_its_queues_limit() -> None:
    """Of the small GPUs, which are chosen first, two pods would take more than the limit of one GPU."""
    placement = Placement(build.queues("queues: [{name: team, limit: {gpus: 1}}]"))
    placement.nodes("small", memory_mib=24_576, gpus=8).nodes("large", memory_mib=81_920, gpus=8)
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    pods = [build.gpu_pod(f"p{i}", memory="20Gi", labels={names.LABEL_QUEUE: "team"}, annotations=notes) for i in "01"]
    assert placement.place(*pods) == {"p0": "large", "p1": "large"}
