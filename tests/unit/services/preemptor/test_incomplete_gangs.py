"""Gangs that run without their minimum, and when their pods are evicted."""

from __future__ import annotations

from typing import Any

from services.preemptor import messages as m
from services.preemptor.repeated_evictions import AGAIN_S
from shared.contracts.facts import Gone
from shared.model.kube_object import Meta
from shared.model.objects import Gang
from shared.model.subgroup import Subgroup
from tests.support import build
from tests.support.harness.preemptor import Preemptor
from tests.unit.services.preemptor.planning.objects import gang

GRACE_S = 60


def ready(**settings: Any) -> Preemptor:
    """A preemptor that has listed all pods, with a gang of three that needs two."""
    preemptor = Preemptor("n", gpus=4, **settings)
    preemptor.send(m.SnapshotSeen(()))
    for name in ("n",):
        preemptor.send(m.FactsSeen(build.put(build.node(name))))
        preemptor.send(m.InventorySeen(build.inventory(name, gpus=4)))
    return preemptor


def evicted(preemptor: Preemptor, after_s: float = 0.0) -> list[str]:
    preemptor.now += after_s
    found = [command for command in preemptor.send(m.Tick()) if isinstance(command, m.Execute)]
    return sorted(order.name for command in found for order in command.evictions)


def three(preemptor: Preemptor, **notes: str) -> None:
    for number in range(3):
        rest = gang("g", 3, least=2)
        rest["annotations"] |= {f"kerf.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
        preemptor.run(f"g-{number}", "n", number, **rest)


def lose(preemptor: Preemptor, *names: str, phase: str = "Failed") -> None:
    for name in names:
        preemptor.send(m.FactsSeen(build.put(build.newer(preemptor.pods[name], phase=phase))))


def test_its_other_pods_are_evicted_when_it_has_lacked_its_minimum_for_long() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    three(preemptor)
    lose(preemptor, "g-0")
    assert evicted(preemptor, GRACE_S) == [], "two are enough"
    lose(preemptor, "g-1")
    assert evicted(preemptor, GRACE_S - 1) == []
    assert evicted(preemptor, 1) == ["g-2"]
    assert evicted(preemptor, 1) == [], "it has just been asked for"
    assert evicted(preemptor, AGAIN_S) == ["g-2"], "a budget may have denied it"
    preemptor.send(m.FactsSeen((Gone(object=preemptor.pods["g-2"]),)))
    assert evicted(preemptor, AGAIN_S) == []


def test_pods_that_ended_well_are_not_missing() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    three(preemptor)
    lose(preemptor, "g-0", "g-1", phase="Succeeded")
    assert evicted(preemptor, 10 * GRACE_S) == []


def test_the_time_starts_again_once_it_has_been_complete() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    three(preemptor)
    lose(preemptor, "g-0", "g-1")
    assert evicted(preemptor, GRACE_S - 1) == []
    preemptor.run("g-3", "n", 3, **gang("g", 3, least=2))
    assert evicted(preemptor, 1) == []
    lose(preemptor, "g-3")
    assert evicted(preemptor, GRACE_S - 1) == []
    assert evicted(preemptor, 1) == ["g-2"]


def test_it_runs_on_unless_the_setting_or_its_annotation_says_otherwise() -> None:
    preemptor = ready()
    three(preemptor)
    lose(preemptor, "g-0", "g-1")
    assert evicted(preemptor, 1_000_000) == []
    kept = ready(incomplete_gang_s=GRACE_S)
    three(kept, gang_incomplete="keep")
    lose(kept, "g-0", "g-1")
    assert evicted(kept, 1_000_000) == []
    said = ready()
    three(said, gang_incomplete="evict-after=10")
    lose(said, "g-0", "g-1")
    assert evicted(said, 9) == []
    assert evicted(said, 1) == ["g-2"]


def test_an_instance_that_does_not_lead_or_has_not_listed_all_pods_evicts_none() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    three(preemptor)
    lose(preemptor, "g-0", "g-1")
    preemptor.now += GRACE_S
    assert preemptor.send(m.Tick(proposes=False)) == []
    fresh = Preemptor("n", gpus=4, incomplete_gang_s=GRACE_S)
    fresh.run("g-2", "n", 2, **gang("g", 3, least=2))
    assert evicted(fresh, GRACE_S) == []


def test_a_last_pod_that_is_updated_is_evicted_all_the_same() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    three(preemptor)
    preemptor.send(m.FactsSeen((Gone(object=preemptor.pods["g-0"]), Gone(object=preemptor.pods["g-1"]))))
    assert evicted(preemptor, GRACE_S - 1) == []
    preemptor.send(m.FactsSeen(build.put(build.newer(preemptor.pods["g-2"], phase="Running"))))
    assert evicted(preemptor, 1) == ["g-2"]


def ray(replicas: int) -> Gang:
    subgroups = (Subgroup(name="headgroup", minimum=1), Subgroup(name="w", minimum=replicas))
    meta = Meta(name="raycluster.ray.io/r", namespace="team", uid="r", resource_version=build.next_version())
    return Gang(metadata=meta, subgroups=subgroups)


def test_a_gang_that_is_scaled_up_while_it_runs_is_not_evicted_for_want_of_room() -> None:
    preemptor = ready(incomplete_gang_s=GRACE_S)
    preemptor.send(m.FactsSeen(build.put(ray(2))))
    for number, group in enumerate(("headgroup", "w", "w")):
        preemptor.run(f"r-{number}", "n", number, labels={"ray.io/cluster": "r", "ray.io/group": group})
    preemptor.send(m.FactsSeen(build.put(ray(6))))
    assert evicted(preemptor, 10 * GRACE_S) == []
    lose(preemptor, "r-2")
    assert evicted(preemptor, GRACE_S - 1) == []
    assert evicted(preemptor, 1) == ["r-0", "r-1"], "it has fewer than it ran with"
