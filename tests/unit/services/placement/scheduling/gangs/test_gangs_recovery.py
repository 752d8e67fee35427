"""Gangs after a crash, a refused Binding, a time-out or the end of members."""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from shared.contracts.commands import AnnounceEvent, Answer, TouchPod
from shared.contracts.log import ReadyRecord
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import decided, member, members


def test_a_crash_between_deciding_and_the_log_leaves_no_member_decided() -> None:
    placement = Placement(answer=False)
    placement.send(m.SnapshotSeen(()))
    placement.send(m.Appended(101))
    placement.answer = True
    placement.nodes("n1", gpus=4)
    placement.answer = False
    pods = members(3)
    placement.facts(*pods)
    assert placement.binds() == {}
    successor = Placement(*pods, build.node("n1"), term=200, records=((101, ReadyRecord(term=100)),))
    assert successor.core.stats.readopted == 0


def test_a_successor_completes_a_gang_that_is_bound_in_part() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = placement.bind(pods[0])
    changed = build.newer(pods[2], labels={"edited": "yes"})
    records = tuple((sequence, record) for sequence, record in placement.log)
    successor = Placement(seen, pods[1], changed, build.node("n1"), term=900, records=records)
    successor.send(m.InventorySeen(build.inventory("n1", gpus=4)))
    assert successor.core.stats.readopted == 1
    assert {b.uid for b in successor.binds().values()} == {"uid-team-p1", "uid-team-p2"}


def test_open_holds_of_a_large_gang_are_logged_again_in_parts_that_the_bus_takes() -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(10)), gpus=32)
    pods = members(300)
    placement.place(*pods)
    assert [len(names) for names in decided(placement)] == [300]
    placement.send(m.TermRenewed(term=5000))
    assert [len(names) for names in decided(placement)] == [300, 256, 44]
    assert placement.log[-1][1] == ReadyRecord(term=5000)
    successor = Placement(*pods, *(build.node(f"n{i}") for i in range(10)), term=9000, records=tuple(placement.log))
    assert successor.core.stats.readopted == 300
    assert [len(names) for names in decided(successor)] == [256, 44]
    assert successor.log[-1][1] == ReadyRecord(term=9000)
    assert [len(c.binds) for c in successor.commands if isinstance(c, m.SendBinds)][-2:] == [256, 44]


def test_after_a_refused_binding_the_rest_runs_and_the_member_is_tried_again_alone() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    for pod in pods[:2]:
        placement.bind(pod)
    version = placement.binds()["uid-team-p2"].resource_version
    placement.send(
        m.BindsAnswered((Answer(uid="uid-team-p2", outcome="refused", resource_version=version, message="no"),))
    )
    assert any(isinstance(p, TouchPod) for p in placement.patches())
    placement.facts(build.newer(pods[2]))
    placement.tick(5.0)
    assert decided(placement)[-1] == ["p2"]


def test_after_its_time_out_a_gang_releases_unbound_members_and_notifies_bound_ones() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3, notes={"timeout": "30"})
    placement.place(*pods)
    placement.bind(pods[0])
    placement.gone(pods[1])
    placement.commands.clear()
    placement.tick(29.0)
    assert not any(isinstance(p, TouchPod) for p in placement.patches())
    placement.tick(2.0)
    touched = [p.uid for p in placement.patches() if isinstance(p, TouchPod)]
    assert touched == ["uid-team-p2"]
    events = [p for p in placement.patches() if isinstance(p, AnnounceEvent)]
    assert [(p.uid, p.reason) for p in events] == [("uid-team-p0", "GangIncomplete")]
    placement.commands.clear()
    placement.facts(build.newer(pods[2]))
    placement.send(m.BeatSeen(("n1",)))
    assert placement.binds() == {}
    assert placement.place(build.gpu_pod("other", gpus=3)) == {"other": "n1"}


def test_every_process_lists_the_releases_of_a_gang_in_the_same_order() -> None:
    placement = Placement().nodes("n1", gpus=16)
    pods = members(16, size=16)
    placement.place(*pods)
    placement.gone(pods[0])
    placement.commands.clear()
    placement.tick(61.0)
    touched = [p.uid for p in placement.patches() if isinstance(p, TouchPod)]
    assert touched == sorted(p.metadata.uid for p in pods[1:])


def test_completed_members_are_not_missing() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.facts(build.newer(seen[0], phase="Succeeded"), build.newer(seen[1], phase="Failed"))
    placement.gone(build.newer(seen[0], phase="Succeeded"))
    placement.tick(100.0)
    assert [p for p in placement.patches() if isinstance(p, AnnounceEvent)] == []


def test_a_restarted_member_does_not_wait_for_completed_members_of_its_job() -> None:
    """The last of a Job's pods fails when the others have ended well: it is the same run, not a new gang."""
    job = OwnerReference(kind="Job", name="train", uid="uid-job", controller=True)

    def of_job(pod: Pod) -> Pod:
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(job,)))

    placement = Placement().nodes("n1", gpus=4)
    pods = [of_job(pod) for pod in members(3)]
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.facts(*(build.newer(pod, phase="Succeeded") for pod in seen[:2]), build.newer(seen[2], phase="Failed"))
    assert placement.place(of_job(member("again", size=3))) == {"again": "n1"}
