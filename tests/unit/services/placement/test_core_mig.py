"""Pods on GPUs in MIG mode, beside soft slices: from the request to the grant and its release."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.free_capacity import fits_room
from services.placement.queries import questions
from shared.book.arrays import NOT_MIG
from shared.book.states import pod_state
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.contracts.queries import WhyQuery
from shared.model.gpu import Inventory
from shared.model.grant import GpuShare, decode_grant
from shared.model.mig import MigInstance
from shared.model.objects import Container, Pod, Resources
from shared.model.request import RequestError
from shared.model.request_reader import read_request
from shared.model.strategies import StrategyName
from tests.support import build
from tests.support.harness.placement import Placement

WITH_MIG: tuple[StrategyName, ...] = ("exclusive", "advisory", "mig")
A100 = {"model": "NVIDIA-A100-SXM4-40GB", "memory_mib": 40960}


def mig_pod(name: str, profile: str, count: int = 1, **rest: Any) -> Pod:
    return build.pod(name, limits={"kerf.dev/slot": "1", f"kerf.dev/mig-{profile}": str(count)}, **rest)


def inventory(
    node: str, *layouts: tuple[MigInstance, ...] | None, strategies: tuple[StrategyName, ...] = WITH_MIG
) -> Inventory:
    """By GPU: instances of a fixed layout, () for cut on demand, None for no MIG."""
    plain = build.inventory(node, gpus=len(layouts), strategies=strategies, **A100)  # type: ignore[arg-type]
    gpus = tuple(
        msgspec.structs.replace(
            gpu, mig_enabled=layout is not None, mig_on_demand=layout == (), mig_instances=layout or ()
        )
        for gpu, layout in zip(plain.gpus, layouts, strict=True)
    )
    return msgspec.structs.replace(plain, gpus=gpus)


def placement_with(
    *layouts: tuple[MigInstance, ...] | None, strategies: tuple[StrategyName, ...] = WITH_MIG
) -> Placement:
    placement = Placement(policy="binpack")
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(inventory("n", *layouts, strategies=strategies)))
    return placement


def shares(placement: Placement, name: str) -> list[GpuShare]:
    grant = decode_grant(placement.binds()[f"uid-team-{name}"].grant)
    return [share for container in grant.containers.values() for share in container.gpus]


def reasons(placement: Placement, pod: Pod) -> dict[str, str]:
    explanation = placement.core.explainer.why(pod_state(pod), max_nodes=5, exists=False)
    return {reason.code: reason.sentence for reason in explanation.summary}


FIXED_MEDIA = (MigInstance(profile="1g.5gb+me", start=0, uuid="MIG-me"),)
FIXED = (
    MigInstance(profile="3g.20gb", start=4, uuid="MIG-big"),
    MigInstance(profile="1g.5gb", start=0, uuid="MIG-one"),
    MigInstance(profile="1g.5gb", start=1, uuid="MIG-two"),
)


def test_an_instance_requested_by_name_is_created_on_demand_and_named_in_the_grant() -> None:
    placement = placement_with(())
    placement.place(mig_pod("a", "1g.5gb"))
    (share,) = shares(placement, "a")
    assert share.mig == MigInstance(profile="1g.5gb", start=6)
    assert (share.memory_mib, share.compute_milli) == (4864, 142)
    grant = decode_grant(placement.binds()["uid-team-a"].grant)
    assert [c.strategy for c in grant.containers.values()] == ["mig"]


def test_an_instance_of_a_fixed_layout_is_named_by_its_uuid_and_given_once() -> None:
    placement = placement_with(FIXED)
    placed = placement.place(*[mig_pod(f"p{i}", "1g.5gb") for i in range(3)])
    assert sorted(placed) == ["p0", "p1"]
    assert {share.mig.uuid for name in placed for share in shares(placement, name) if share.mig} == {
        "MIG-one",
        "MIG-two",
    }


def test_several_instances_may_be_on_one_gpu_or_on_several() -> None:
    placement = placement_with(FIXED, FIXED)
    placement.place(mig_pod("three", "1g.5gb", 3))
    assert len({share.mig.uuid + share.uuid for share in shares(placement, "three") if share.mig}) == 3
    assert placement.place(mig_pod("two", "1g.5gb", 2)) == {}


def test_a_part_gets_the_smallest_instance_that_covers_it() -> None:
    placement = placement_with(FIXED)
    placement.place(build.gpu_pod("small", memory="4Gi"), build.gpu_pod("large", memory="8Gi"))
    assert [s.mig.profile for name in ("small", "large") for s in shares(placement, name) if s.mig] == [
        "1g.5gb",
        "3g.20gb",
    ]


def test_the_grant_of_a_part_says_what_of_the_instance_was_requested() -> None:
    placement = placement_with((), ())
    placement.place(
        build.gpu_pod("memory", memory="3Gi"), build.gpu_pod("compute", compute=30), mig_pod("named", "1g.5gb")
    )
    requested = {
        name: [(s.requested_mib, s.requested_milli) for s in shares(placement, name)]
        for name in ("memory", "compute", "named")
    }
    assert requested == {"memory": [(3072, 0)], "compute": [(40960 * 30 // 100, 300)], "named": [(0, 0)]}


def test_whole_gpus_never_land_on_a_gpu_in_mig_mode() -> None:
    placement = placement_with((), None)
    assert placement.place(build.gpu_pod("one", gpus=1), build.gpu_pod("two", gpus=1)) == {"one": "n"}
    assert [s.uuid for s in shares(placement, "one")] == ["n-gpu-1"]


def test_parts_of_several_gpus_never_land_on_gpus_in_mig_mode() -> None:
    assert placement_with((), ()).place(build.gpu_pod("p", gpus=2, memory="2Gi")) == {}


def test_hard_isolation_of_a_part_is_kept_by_an_instance_and_by_nothing_weaker() -> None:
    hard = {"kerf.dev/isolation": "hard"}
    placement = placement_with(None, ())
    placement.place(build.gpu_pod("p", memory="4Gi", annotations=hard))
    assert [s.uuid for s in shares(placement, "p")] == ["n-gpu-1"]
    assert placement_with(None).place(build.gpu_pod("q", memory="4Gi", annotations=hard)) == {}


def test_hard_isolation_takes_the_smallest_instance_that_fits_while_whole_gpus_are_idle() -> None:
    hard = {"kerf.dev/isolation": "hard"}
    placement = Placement(policy="kerf")
    for name, layouts in {"big": (FIXED[:1], None), "small": (None, FIXED[1:])}.items():
        placement.facts(build.node(name))
        placement.send(m.InventorySeen(inventory(name, *layouts)))
    placed = placement.place(*(build.gpu_pod(f"p{i}", memory="3Gi", annotations=hard) for i in range(3)))
    assert placed == {"p0": "small", "p1": "small", "p2": "big"}
    assert [share.mig.profile for name in placed for share in shares(placement, name) if share.mig] == [
        "1g.5gb", "1g.5gb", "3g.20gb",
    ]  # fmt: skip


def test_what_a_pod_releases_is_free_for_another_profile() -> None:
    placement = placement_with(())
    first = mig_pod("first", "7g.40gb")
    assert placement.place(first, mig_pod("second", "3g.20gb")) == {"first": "n"}
    bound = placement.bind(first)
    grant = decode_grant(placement.binds()[first.metadata.uid].grant)
    placement.gone(bound)
    placement.send(m.ReleaseSeen(node="n", grant_id=grant.grant_id, reason="ended"))
    placement.tick(1)
    assert "uid-team-second" in placement.binds()


def test_two_containers_get_instances_that_do_not_overlap() -> None:
    made = tuple(
        Container(name=name, resources=Resources(limits={"kerf.dev/slot": "1", "kerf.dev/mig-3g.20gb": "1"}))
        for name in ("a", "b")
    )
    placement = placement_with(())
    placement.place(build.pod("p", containers=made))
    assert sorted(s.mig.start for s in shares(placement, "p") if s.mig) == [0, 4]


@pytest.mark.parametrize(
    ("layouts", "pod", "code", "says"),
    [
        ((None,), mig_pod("p", "1g.5gb"), "no-mig", "no GPU of the node is in MIG mode"),
        (
            ((),),
            mig_pod("p", "1g.6gb"),
            "mig-profile",
            "needs a MIG instance 1g.6gb, the node's GPUs give 1g.10gb, 1g.5gb",
        ),
        (((),), build.gpu_pod("p", gpus=1), "mig-mode", "the pod wants whole GPUs"),
        (
            (FIXED,),
            build.gpu_pod("p", memory="30Gi"),
            "mig-profile",
            "needs a MIG instance of 30 GiB, the node's GPUs give 1g.5gb, 3g.20gb",
        ),
    ],
)
def test_kerf_why_explains_the_part_of_mig(layouts: tuple[Any, ...], pod: Pod, code: str, says: str) -> None:
    found = reasons(placement_with(*layouts), pod)
    assert list(found) == [code]
    assert says in found[code]


def second_of(placement: Placement, name: str) -> str:
    state = placement.core.book.pods[f"uid-team-{name}"]
    return placement.core.explainer.why(state, max_nodes=5).second


def test_kerf_why_says_why_a_part_is_no_instance_and_why_it_is_one() -> None:
    placement = Placement(policy="kerf")
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(inventory("n", FIXED[:1], None)))
    placement.place(build.gpu_pod("p", memory="3Gi"))
    assert [share.mig for share in shares(placement, "p")] == [None]
    assert second_of(placement, "p") == (
        "no other node could take it now; on n GPU 0 is next: of its MIG instance 3g.20gb 16.5 GiB would be of no use"
    )
    placement = Placement(policy="kerf")
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(inventory("n", FIXED, None)))
    placement.place(build.gpu_pod("p", memory="4Gi"))
    assert [share.mig for share in shares(placement, "p")] == [FIXED[1]]
    assert second_of(placement, "p") == (
        "no other node could take it now; on n GPU 1 is next: a share would begin an idle GPU that later pods need more"
    )


def test_kerf_why_says_nothing_of_instances_where_there_is_no_choice() -> None:
    hard = {"kerf.dev/isolation": "hard"}
    for layouts, pod in (
        ((None, None), build.gpu_pod("p", memory="3Gi")),
        ((FIXED, None), mig_pod("p", "1g.5gb")),
        ((FIXED, None), build.gpu_pod("p", gpus=1)),
        ((FIXED, None), build.gpu_pod("p", memory="3Gi", annotations=hard)),
    ):
        placement = placement_with(*layouts)
        placement.place(pod)
        assert second_of(placement, "p") == "no other node could take it now"


def test_kerf_why_names_the_free_instances_if_the_suitable_ones_are_in_use() -> None:
    placement = placement_with(FIXED)
    placement.place(mig_pod("a", "1g.5gb", 2))
    assert "needs a MIG instance 1g.5gb, free are 3g.20gb" in reasons(placement, mig_pod("b", "1g.5gb"))["gpu-full"]


def test_kerf_why_does_not_count_gpus_that_cannot_enforce_the_isolation() -> None:
    placement = placement_with(None, (FIXED[0],))
    placement.place(mig_pod("a", "3g.20gb"))
    said = reasons(placement, build.gpu_pod("b", memory="4Gi", annotations={"kerf.dev/isolation": "hard"}))
    assert said == {
        "gpu-full": "container c needs a GPU and 0 of 2 fit; nearest is GPU 1: needs a MIG instance of 4 GiB, free "
        "are none"
    }


def test_a_gpu_in_mig_mode_is_not_used_if_its_agent_offers_no_instances() -> None:
    placement = placement_with((), strategies=("exclusive", "advisory"))
    assert placement.place(build.gpu_pod("p", memory="1Gi")) == {}
    assert (
        "the node's agent hands out no MIG instances"
        in reasons(placement, build.gpu_pod("p", memory="1Gi"))["gpu-full"]
    )


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"kerf.dev/mig-1g.11gb": "1"}, "unknown-mig-profile"),
        ({"kerf.dev/mig-1g.5gb": "1", "kerf.dev/mig-2g.10gb": "1"}, "mig-and-more"),
        ({"kerf.dev/mig-1g.5gb": "1", "kerf.dev/gpu-memory": "1Gi"}, "mig-and-more"),
        ({"kerf.dev/mig-1g.5gb": "65"}, "too-many-gpus"),
        ({"kerf.dev/mig-1g.5gb": "500m"}, "fraction"),
    ],
)
def test_an_invalid_request_is_refused_by_name(limits: dict[str, str], code: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_request(build.pod("p", limits=limits))
    assert refused.value.code == code


_ASKS = st.one_of(
    st.sampled_from(["1g.5gb", "1g.5gb.me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]).map(
        lambda p: {f"kerf.dev/mig-{p}": "1"}
    ),
    st.integers(1, 40).map(lambda gib: {"kerf.dev/gpu-memory": f"{gib}Gi"}),
    st.integers(1, 100).map(lambda percent: {"kerf.dev/gpu-compute": str(percent)}),
)


@settings(max_examples=60)
@given(st.lists(_ASKS, min_size=1, max_size=20), st.data())
def test_columns_equal_the_gpus_and_nothing_overlaps_whatever_comes_and_goes(
    asks: list[dict[str, str]], data: st.DataObject
) -> None:
    placement = placement_with((), FIXED, None)
    book = placement.core.book
    for number, limits in enumerate(asks):
        pod = build.pod(f"p{number}", limits=limits | {"kerf.dev/slot": "1"})
        fits = bool(fits_room(pod_state(pod), book.arrays, np.array([book.nodes["n"].row]))[0][0])
        assert (placement.place(pod) != {}) == fits
        held = [uid for uid, state in book.pods.items() if state.grant_id and not state.pod.spec.node_name]
        if held and data.draw(st.booleans()):
            placement.gone(book.pods[data.draw(st.sampled_from(held))].pod)
        else:
            placement.facts(build.newer(pod, labels={"seen": "again"})) if not fits else None
        assert book.overbooked() == []
        before = {
            name: getattr(book.arrays, name)[book.nodes["n"].row].copy()
            for name in ("gpu_mig_used", "gpu_mig_fits", "gpu_free_mib", "gpu_free_milli")
        }
        book.put_inventory(
            msgspec.structs.replace(inventory("n", (), FIXED, None), generation=number + 2)
        )  # from scratch
        for name, column in before.items():
            assert (getattr(book.arrays, name)[book.nodes["n"].row] == column).all(), name
    assert book.arrays.gpu_mig_geometry[book.nodes["n"].row, 2] == NOT_MIG


@pytest.mark.parametrize(
    ("layout", "pod", "helps"),
    [
        # The smallest instance that is enough, not the largest.
        ((), mig_pod("p", "1g.6gb"), "fits with kerf.dev/mig-1g.10gb: 1 instead of kerf.dev/mig-1g.6gb (n)"),
        ((), build.gpu_pod("p", gpus=1), "fits with kerf.dev/mig-7g.40gb: 1 instead of a whole GPU (n)"),
        # Where none is enough, how much the largest has.
        (
            FIXED,
            build.gpu_pod("p", memory="30Gi"),
            "fits with kerf.dev/mig-3g.20gb: 1 instead of a share, which has 19.5 GiB (n)",
        ),
    ],
)
def test_advice_names_an_instance_that_a_manifest_can_ask_for(layout: Any, pod: Pod, helps: str) -> None:
    placement = placement_with(layout)
    placement.facts(pod)
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name="p"), 0.0, 0.0))
    assert answer.explanation is not None
    assert helps in answer.explanation.helps


def test_the_name_of_a_profile_with_media_is_written_without_its_plus() -> None:
    placement = placement_with(FIXED_MEDIA)
    placement.facts(mig_pod("p", "2g.10gb"))
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name="p"), 0.0, 0.0))
    assert answer.explanation is not None
    said = (*answer.explanation.helps, *(reason.helps for reason in answer.explanation.summary))
    assert any("kerf.dev/mig-1g.5gb.me" in text for text in said)
    assert not any("+me" in text for text in said)


def test_an_instance_that_runs_and_whose_pod_is_unknown_keeps_its_slices() -> None:
    """A pod was deleted by force before this leader came, and its container still runs."""
    placement = Placement(build.node("n"), policy="binpack")
    placement.answer = False
    placement.send(m.InventorySeen(inventory("n", ())))
    placement.answer = True
    share = GpuShare(
        node="n", uuid=placement.core.book.nodes["n"].gpus[0].uuid, memory_mib=19968, compute_milli=428,
        mig=MigInstance(profile="3g.20gb", start=4),
    )  # fmt: skip
    ghost = LiveSlice(
        uid="x", namespace="old", name="ghost", container="c", grant_id="1-1", strategy="mig",
        gpus={share.uuid: (19968, 428)}, mig=(share,),
    )  # fmt: skip
    placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, live=(ghost,))))
    assert placement.place(mig_pod("all", "7g.40gb")) == {}
    assert placement.place(mig_pod("half", "3g.20gb")) == {"half": "n"}
    assert [one.mig and one.mig.start for one in shares(placement, "half")] == [0]
