"""The cluster after a change that is only tried."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.explain.what_if_clusters import TRIED_MOST
from services.placement.queries import questions
from shared.contracts.queries import AddGpus, AddNodes, Resize, WhatIfQuery, WhenQuery
from shared.model.claims import (
    CapacityRequests,
    DeviceClaim,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from shared.model.kube_object import Meta, OwnerReference
from shared.model.names import DEVICE_CLASS
from shared.model.objects import PodClaim
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import NOW, run, world


def names(told: tuple[object, ...]) -> list[str]:
    return sorted(p.name for p in told)  # type: ignore[attr-defined]


def test_a_drain_names_the_new_node_of_each_pod_and_the_pods_that_fit_nowhere() -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("small", memory="10Gi"), build.gpu_pod("large", gpus=1), started_s_ago=100)
    placement.nodes("b", gpus=1)
    answer = world(placement, drain=("a",))
    assert [(m.name, m.source, m.target, m.disturbed_gpu_seconds) for m in answer.moves] == [("large", "a", "b", 100)]
    assert names(answer.stranded) == ["small"]
    assert answer.sentence == "1 pod would move and find a place; 1 pod would find none (team/small); 1 pod would wait"


def test_pods_of_a_daemonset_end_with_their_node() -> None:
    placement = Placement().nodes("a", gpus=1)
    pod = build.gpu_pod("agent", memory="1Gi")
    owner = OwnerReference(kind="DaemonSet", name="agents", uid="d", controller=True)
    run(
        placement,
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,))),
    )
    assert world(placement, drain=("a",)).sentence == "nothing would change for any pod"


def test_an_added_node_takes_pending_pods() -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("there", gpus=2))
    placement.facts(*(build.gpu_pod(f"w{i}", gpus=2) for i in range(3)))
    answer = world(placement, add_nodes=(AddNodes(like="a", count=2),))
    assert [(p.name, p.node) for p in answer.fits] == [("w0", "a-like-1"), ("w1", "a-like-2")]
    assert answer.waiting == 1


@pytest.mark.parametrize(("more", "said"), [(0, False), (1, True)])
def test_the_answer_says_how_much_of_a_long_queue_was_tried(more: int, said: bool) -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("there", gpus=1))
    placement.facts(*(build.gpu_pod(f"w{i}", gpus=1) for i in range(TRIED_MOST + more)))
    answer = world(placement, add_nodes=(AddNodes(like="a", count=1),))
    assert answer.waiting == TRIED_MOST + more - 1
    assert answer.sentence.endswith(f"; only the first {TRIED_MOST} pods of the queue were tried") is said


def test_more_nodes_may_be_added_than_the_book_has_rows_for() -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(64)), gpus=1)
    run(placement, *(build.gpu_pod(f"there{i}", gpus=1) for i in range(64)))
    placement.facts(build.gpu_pod("w", gpus=1))
    answer = world(placement, add_nodes=(AddNodes(like="n0", count=1),))
    assert [(p.name, p.node) for p in answer.fits] == [("w", "n0-like-1")]


def test_added_gpus_make_a_large_pod_fit() -> None:
    placement = Placement().nodes("a", gpus=2)
    placement.facts(build.gpu_pod("w", gpus=4))
    assert names(world(placement, add_gpus=(AddGpus(node="a", count=1),)).fits) == []
    assert names(world(placement, add_gpus=(AddGpus(node="a", count=2),)).fits) == ["w"]


def test_a_resized_pod_stays_moves_or_does_not_fit() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("p", memory="20Gi"), build.gpu_pod("beside", memory="40Gi"))
    placement.nodes("b", gpus=1)

    def resized(memory: str) -> tuple[list[str], list[str]]:
        answer = world(placement, resize=(Resize(namespace="team", name="p", limits={"kerf.dev/gpu-memory": memory}),))
        return [m.target for m in answer.moves], names(answer.stranded)

    assert resized("40Gi") == ([], [])
    assert resized("70Gi") == (["b"], [])
    assert resized("90Gi") == ([], ["p"])
    too_large = Resize(namespace="team", name="p", limits={"kerf.dev/gpu-memory": "90Gi"})
    (stranded,) = world(placement, resize=(too_large,)).stranded
    assert stranded.sentence.startswith("finds no place on ")


def test_a_resized_pod_that_waits_fits_or_waits_and_does_not_move() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("p", memory="60Gi"))
    placement.facts(build.gpu_pod("w", memory="40Gi"))

    def resized(memory: str) -> tuple[list[str], int, int]:
        answer = world(placement, resize=(Resize(namespace="team", name="w", limits={"kerf.dev/gpu-memory": memory}),))
        assert answer.stranded == ()
        return names(answer.fits), len(answer.moves), answer.waiting

    assert resized("10Gi") == (["w"], 0, 0)
    assert resized("50Gi") == ([], 0, 1)


def claim(memory: str) -> ResourceClaim:
    exactly = ExactRequest(device_class_name=DEVICE_CLASS, capacity=CapacityRequests(requests={"memory": memory}))
    return ResourceClaim(
        metadata=Meta(name="c", namespace="team", uid="c", resource_version=build.next_version()),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=(DeviceRequest(name="gpu", exactly=exactly),))),
    )


def test_of_a_pod_with_claims_a_container_with_limits_is_resized() -> None:
    """Its claims stay as they are."""
    claims = (PodClaim(name="mine", resource_claim_name="c"),)
    placement = Placement().nodes("a", gpus=1)
    placement.send(m.InventorySeen(msgspec.structs.replace(build.inventory("a", gpus=1), dra=True)))
    placement.facts(claim("40Gi"), build.gpu_pod("w", memory="90Gi", resource_claims=claims))
    size = Resize(namespace="team", name="w", limits={"kerf.dev/gpu-memory": "50Gi"})
    assert names(world(placement, resize=(size,)).fits) == []
    size = Resize(namespace="team", name="w", limits={"kerf.dev/gpu-memory": "30Gi"})
    assert names(world(placement, resize=(size,)).fits) == ["w"]
    placement.facts(build.pod("claimed", resource_claims=claims))
    size = Resize(namespace="team", name="claimed", limits={"kerf.dev/gpu-memory": "30Gi"})
    answer = finish(questions.what_if(placement.core, WhatIfQuery(resize=(size,)), NOW))
    assert "by ResourceClaims alone" in answer.error


def test_a_gang_that_waits_gets_its_places_together_or_none() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    placement = Placement().nodes("a", gpus=1)
    placement.facts(*(build.gpu_pod(f"m{i}", gpus=1, annotations=notes) for i in range(3)))
    assert world(placement, add_nodes=(AddNodes(like="a"),)).fits == ()
    assert names(world(placement, add_nodes=(AddNodes(like="a", count=2),)).fits) == ["m0", "m1", "m2"]


def test_members_of_a_gang_keep_to_their_domain_when_their_node_goes() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-topology": "required=rack"}
    placement = Placement()
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        placement.nodes(name, gpus=1)
        placement.facts(build.node(name, labels={"topology.kubernetes.io/rack": rack}))
    run(placement, *(build.gpu_pod(f"m{i}", gpus=1, annotations=notes) for i in range(2)))
    assert names(world(placement, drain=("a",)).stranded) == ["m0"]


def test_a_pod_can_be_explained_in_the_changed_cluster() -> None:
    placement = Placement().nodes("a", gpus=1)
    ghost = build.gpu_pod("ghost", gpus=2)
    query = WhatIfQuery(pod=msgspec.to_builtins(ghost), add_gpus=(AddGpus(node="a", count=1),))
    answer = finish(questions.what_if(placement.core, query, NOW))
    assert answer.explanation is not None
    assert answer.explanation.state == "would-fit"


def test_a_manifest_that_was_edited_is_judged_as_it_is_now() -> None:
    placement = Placement().nodes("a", gpus=4)

    def totals(**asks: int) -> list[int]:
        query = WhatIfQuery(pod=msgspec.to_builtins(build.gpu_pod("edited", **asks)))
        explanation = finish(questions.what_if(placement.core, query, NOW)).explanation
        return [] if explanation is None else [c.total for c in explanation.candidates]

    alone = totals(gpus=4)
    totals(gpus=1)
    assert totals(gpus=4) == alone != totals(gpus=1)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (WhatIfQuery(drain=("nowhere",)), "there is no node nowhere"),
        (WhatIfQuery(add_nodes=(AddNodes(like="a", count=0),)), "from 1 to 1000"),
        (WhatIfQuery(add_gpus=(AddGpus(node="a", count=65),)), "from 1 to 64"),
        (WhatIfQuery(resize=(Resize(namespace="team", name="nobody", limits={}),)), "no pod team/nobody"),
        (
            WhatIfQuery(resize=(Resize(namespace="team", name="p", limits={"kerf.dev/gpu": "-1"}),)),
            "would make no sense",
        ),
        (WhatIfQuery(resize=(Resize(namespace="team", name="p", limits={}, container="x"),)), "no container 'x'"),
    ],
)
def test_an_impossible_query_is_refused_with_an_alternative(query: WhatIfQuery, error: str) -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("p", gpus=1))
    assert error in finish(questions.what_if(placement.core, query, NOW)).error


def test_neither_a_new_node_nor_time_helps_a_pod_over_its_queues_quota() -> None:
    placement = Placement().nodes("a", gpus=1)
    placement.facts(build.queues("queues: []\ndefault: {limit: {gpus: 1}}"))
    run(placement, build.gpu_pod("there", gpus=1))
    placement.facts(build.gpu_pod("w", gpus=1))
    assert (
        world(placement, add_nodes=(AddNodes(like="a"),)).sentence
        == "nothing would change for any pod; 1 pod would wait"
    )
    error = finish(questions.when_(placement.core, WhenQuery(namespace="team", name="w"), NOW)).error
    assert error.startswith("free capacity would not help pod team/w now: ")
