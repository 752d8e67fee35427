"""The areas in which a gang that requires one domain may be planned."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from services.preemptor.planning import attempt, planner
from services.preemptor.planning.areas import Areas
from shared.contracts.facts import Put
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, Pod, PodDisruptionBudget
from tests.support import build
from tests.support.harness.preemptor import Preemptor

RACK = "topology.kubernetes.io/rack"


def racks(gpus: int = 2, **of: str) -> Preemptor:
    """Empty nodes with racks."""
    preemptor = Preemptor(*of, gpus=gpus)
    for node, rack in of.items():
        preemptor.send(m.FactsSeen((Put(object=build.node(node, labels={RACK: rack} if rack else {})),)))
    return preemptor


def member(preemptor: Preemptor, name: str, size: int, *, least: int = 0, **rest: object) -> Pod:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(size), "kerf.dev/gang-topology": "required=rack"}
    return preemptor.wait(name, annotations=notes | ({"kerf.dev/gang-min": str(least)} if least else {}), **rest)


def areas(preemptor: Preemptor, *pods: Pod, closed: tuple[str, ...] = ()) -> list[str]:
    members = [preemptor.core.book.pods[pod.metadata.uid] for pod in pods]
    return [
        f"{area.name}:{''.join(node.name for node in area.nodes)}"
        for area in Areas(preemptor.core.book, preemptor.core.gangs).of(members, closed)
    ]


def test_all_nodes_are_one_area_without_a_required_level() -> None:
    preemptor = racks(a="x", b="y", c="")
    assert areas(preemptor, preemptor.wait("alone")) == [":abc"]


def test_each_rack_is_an_area_and_nodes_without_rack_are_none() -> None:
    preemptor = racks(a="x", b="y", c="")
    preemptor.run("low", "a", 0)
    assert areas(preemptor, *(member(preemptor, f"g{i}", 2) for i in range(2))) == ["x:a", "y:b"]


@pytest.mark.parametrize(
    ("asks", "size", "expected"),
    [
        ({"gpus": 1}, 3, ["x:ab"]),
        ({"gpus": 1}, 5, []),
        ({"gpus": 2}, 2, ["x:ab"]),
        ({"gpus": 0, "memory": "40Gi"}, 4, ["x:ab", "y:c"]),
        ({"gpus": 0, "memory": "50Gi"}, 3, ["x:ab"]),
        ({"gpus": 0, "memory": "1Gi", "compute": 60}, 3, ["x:ab"]),
        ({"annotations": "T4"}, 2, []),
    ],
)
def test_racks_that_are_too_small_are_left_out(asks: dict[str, object], size: int, expected: list[str]) -> None:
    preemptor = racks(a="x", b="x", c="y")
    more = {"kerf.dev/gpu-model": "T4"} if asks == {"annotations": "T4"} else {}
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(size), "kerf.dev/gang-topology": "required=rack", **more}
    pods = [
        preemptor.wait(f"g{i}", **{"annotations": notes} | {k: v for k, v in asks.items() if k != "annotations"})
        for i in range(size)
    ]  # type: ignore[arg-type]
    assert areas(preemptor, *pods) == expected


def test_closed_nodes_do_not_count() -> None:
    preemptor = racks(a="x", b="x", c="y")
    pods = [member(preemptor, f"g{i}", 3) for i in range(3)]
    assert areas(preemptor, *pods, closed=("b",)) == []


def test_a_gang_stays_in_the_rack_where_it_has_begun() -> None:
    preemptor = racks(a="x", b="x", c="y")
    notes = {
        "kerf.dev/gang": "g",
        "kerf.dev/gang-size": "3",
        "kerf.dev/gang-min": "1",
        "kerf.dev/gang-topology": "required=rack",
    }
    preemptor.run("g0", "c", 0, annotations=notes)
    assert areas(preemptor, member(preemptor, "g1", 3, least=1)) == ["y:c"]


@pytest.mark.parametrize(("slice_mib", "tried_there"), [(0, 0), (61_440, 2)])
def test_a_rack_is_abandoned_as_soon_as_it_costs_more_than_the_best_one(
    monkeypatch: pytest.MonkeyPatch, slice_mib: int, tried_there: int
) -> None:
    """The cost of whole GPUs is known in advance.

    The cost of slices only at the member whose victim causes it.
    """
    tried: list[str] = []
    fit = attempt.fit

    def counted(*args: object) -> object:
        tried.append(args[2])  # type: ignore[arg-type]
        return fit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "fit", counted)
    preemptor = racks(gpus=1, a="x", b="x", c="x", d="y", e="y", f="y")
    for node in "abc":
        preemptor.run(node, node, 0, ran_s=10, memory_mib=slice_mib)
    for node in "def":
        preemptor.run(node, node, 0, ran_s=18, memory_mib=slice_mib)
    for number in range(3):
        member(preemptor, f"g{number}", 3, **({"gpus": 0, "memory": f"{slice_mib}Mi"} if slice_mib else {}))
    assert preemptor.victims() == [["a", "b", "c"]]
    assert len(set(tried) & set("def")) == tried_there


def test_further_areas_are_tried_in_the_next_tick_and_all_in_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The areas with the lowest bounds have a budget that allows one eviction, but not two."""
    monkeypatch.setattr(planner, "MAX_AREAS", 1)
    preemptor = racks(gpus=1, a="x", b="x", c="y", d="y", e="z", f="z")
    for rack in ("ab", "cd"):
        meta = Meta(name=rack, namespace="team", uid=f"uid-{rack}", resource_version=build.next_version())
        spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": rack}))
        preemptor.send(
            m.FactsSeen(
                (
                    Put(
                        object=PodDisruptionBudget(
                            metadata=meta, spec=spec, status=DisruptionBudgetStatus(disruptions_allowed=1)
                        )
                    ),
                )
            )
        )
        for node in rack:
            preemptor.run(node, node, 0, ran_s=1, labels={"app": rack})
    for node in "ef":
        preemptor.run(node, node, 0, ran_s=9_000)
    for number in range(2):
        member(preemptor, f"g{number}", 2)
    answer = preemptor.core.dry_run("team", "g0", preemptor.now)
    assert answer.plan is not None
    assert sorted(victim.name for victim in answer.plan.victims) == ["e", "f"]
    assert [preemptor.victims(), preemptor.victims(), preemptor.victims()] == [[], [], [["e", "f"]]]
