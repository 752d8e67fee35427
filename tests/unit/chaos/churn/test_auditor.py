"""The churn's auditor detects each violation, and reports nothing if all is correct."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.model import names
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from shared.model.kube_object import Meta
from shared.model.objects import Condition, Pod, PodSpec, PodStatus
from tests.chaos.audit import Ask
from tests.chaos.churn import removals
from tests.chaos.churn.auditor import Auditor, Gone
from tests.chaos.churn.journal import Booted, Ended, Reader, Started, Writer

MIB = 81_920
GPUS = {("n1", "G1"): MIB, ("n1", "G2"): MIB, ("n2", "G3"): MIB}
WHOLE, HALF = (MIB, 1000), (MIB // 2, 500)


def grant(grant_id: str, *, node: str = "n1", gpu: str = "G1", part: tuple[int, int] = WHOLE) -> Grant:
    share = GpuShare(node=node, uuid=gpu, memory_mib=part[0], compute_milli=part[1])
    return Grant(grant_id=grant_id, term=1, containers={"main": ContainerGrant(strategy="exclusive", gpus=(share,))})


def pod(name: str, granted: Grant | None = None, *, node: str = "n1", phase: str = "Running") -> Pod:
    """Bound to the node of its grant."""
    if granted is None:
        return Pod(metadata=Meta(name=name, uid=f"uid-{name}"))
    annotations = {names.ANNOTATION_GRANT: encode_grant(granted)}
    return Pod(
        metadata=Meta(name=name, uid=f"uid-{name}", annotations=annotations),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase),
    )


def started(name: str, granted: Grant, at: float = 0.0) -> Started:
    shares = granted.containers["main"].gpus
    gpus = {share.uuid: (share.memory_mib, share.compute_milli) for share in shares}
    return Started(at, shares[0].node, f"uid-{name}", "main", granted.grant_id, gpus)


def ended(name: str) -> Ended:
    return Ended("n1", f"uid-{name}", "main")


@pytest.fixture
def auditor() -> Auditor:
    return Auditor(GPUS)


def kinds(auditor: Auditor) -> list[str]:
    return [violation.kind for violation in auditor.violations]


def test_pods_that_share_a_gpu_fairly_are_no_violation(auditor: Auditor) -> None:
    one, two = grant("g1", part=HALF), grant("g2", part=HALF)
    auditor.heard([started("a", one), started("b", two)], ["n1"])
    auditor.look([pod("a", one), pod("b", two), pod("c")], {"a": Ask(1, MIB // 2, 500)}, 1.0)
    assert auditor.violations == ()
    assert auditor.looks == 1


@pytest.mark.parametrize("part", [(MIB // 2 + 1, 100), (1024, 501)])
def test_two_bound_pods_that_exceed_a_gpu(auditor: Auditor, part: tuple[int, int]) -> None:
    auditor.look([pod("a", grant("g1", part=part)), pod("b", grant("g2", part=part))], {}, 1.0)
    assert kinds(auditor) == ["double booking"]
    assert "a bound by g1; b bound by g2" in auditor.violations[0].text


def test_a_violation_that_lasts_is_counted_once(auditor: Auditor) -> None:
    for now in (1.0, 2.0):
        auditor.look([pod("a", grant("g1")), pod("b", grant("g2"))], {}, now)
    assert auditor.count("double booking") == 1


def test_a_bound_pod_and_a_deleted_pod_that_still_runs(auditor: Auditor) -> None:
    auditor.heard([started("a", grant("g1"))], ["n1"])
    auditor.look([pod("b", grant("g2"))], {}, 1.0)
    assert kinds(auditor) == ["double booking"]
    assert "pod uid-a still running by g1" in auditor.violations[0].text


def test_a_pod_that_also_runs_where_its_grant_is_not(auditor: Auditor) -> None:
    auditor.heard([started("a", grant("g1")), started("a", grant("g1", gpu="G2"))], ["n1"])
    auditor.look([pod("a", grant("g1")), pod("b", grant("g2", gpu="G2"))], {}, 1.0)
    assert kinds(auditor) == ["double booking"]


def test_a_finished_pod_takes_its_gpu_until_it_runs_no_more(auditor: Auditor) -> None:
    pods = [pod("a", grant("g1"), phase="Succeeded"), pod("b", grant("g2"))]
    auditor.look(pods, {}, 1.0)
    assert auditor.violations == ()
    auditor.heard([started("a", grant("g1"))], ["n1"])
    auditor.look(pods, {}, 2.0)
    assert kinds(auditor) == ["double booking"]


def test_containers_that_ended_or_started_later_or_were_on_a_killed_process_do_not_run(auditor: Auditor) -> None:
    auditor.heard([started("a", grant("g1")), ended("a")], ["n1"])
    auditor.look([pod("b", grant("g2"))], {}, 1.0)
    auditor.heard([started("c", grant("g3"), at=1.5)], ["n1"])
    auditor.look([pod("b", grant("g2"))], {}, 1.0)
    auditor.gone_dark(["n1"])
    auditor.look([pod("b", grant("g2"))], {}, 2.0)
    auditor.heard([started("d", grant("g4")), Booted()], ["n1"])
    auditor.look([pod("b", grant("g2"))], {}, 3.0)
    assert auditor.violations == ()


def remote(auditor: Auditor) -> Grant:
    """A grant of a GPU of n1. Its server runs there for a pod on n2."""
    share = GpuShare(node="n1", uuid="G1", memory_mib=MIB, compute_milli=1000)
    container = ContainerGrant(strategy="remote", gpus=(share,), serving="exclusive")
    granted = Grant(grant_id="g1", term=1, containers={"main": container})
    auditor.heard([started("a", granted)], ["n1"])
    return granted


def test_a_pod_has_nothing_of_another_nodes_gpu_after_that_node_has_rebooted(auditor: Auditor) -> None:
    pods = [pod("a", remote(auditor), node="n2"), pod("b", grant("g2"))]
    auditor.gone_dark(["n1"])
    auditor.look(pods, {}, 1.0)
    assert auditor.violations == ()


def test_a_server_that_starts_again_after_the_reboot_counts(auditor: Auditor) -> None:
    granted = remote(auditor)
    auditor.heard([Booted(), started("a", granted, at=0.5)], ["n1"])
    auditor.look([pod("a", granted, node="n2"), pod("b", grant("g2"))], {}, 1.0)
    assert kinds(auditor) == ["double booking"]


def test_a_reboot_of_the_pods_own_node_ends_none_of_its_grant(auditor: Auditor) -> None:
    granted = remote(auditor)
    auditor.gone_dark(["n2"])
    auditor.look([pod("a", granted, node="n2"), pod("b", grant("g2"))], {}, 1.0)
    assert kinds(auditor) == ["double booking"]


def test_one_grant_on_two_pods(auditor: Auditor) -> None:
    part = (1024, 10)
    auditor.look([pod("a", grant("g1", part=part)), pod("b", grant("g1", part=part))], {}, 1.0)
    assert kinds(auditor) == ["grant"]
    assert "several pods: ['a', 'b']" in auditor.violations[0].text


@pytest.mark.parametrize("later", [grant("g2"), grant("g1", gpu="G2")])
def test_a_grant_that_changes(auditor: Auditor, later: Grant) -> None:
    auditor.look([pod("a", grant("g1"))], {}, 1.0)
    auditor.look([pod("a", later)], {}, 2.0)
    assert kinds(auditor) == ["grant"]
    assert "has changed" in auditor.violations[0].text


def test_a_grant_on_another_node_than_its_pod(auditor: Auditor) -> None:
    auditor.look([pod("a", grant("g1", node="n2", gpu="G3"))], {}, 1.0)
    assert kinds(auditor) == ["grant"]
    assert "is bound to n1, and its grant g1 is on ['n2']" in auditor.violations[0].text


def test_a_bound_pod_without_a_grant_and_one_with_less_than_it_requested(auditor: Auditor) -> None:
    bare = Pod(metadata=Meta(name="a", uid="uid-a"), spec=PodSpec(node_name="n1"))
    auditor.look([bare, pod("b", grant("g1", part=HALF))], {"b": Ask(1)}, 1.0)
    assert [violation.text[0] for violation in auditor.violations] == ["a", "b"]


# --- at the end -------------------------------------------------------------------------------------------------


def test_a_bound_pod_that_does_not_run_with_its_own_grant_is_lost(auditor: Auditor) -> None:
    one = grant("g1")
    auditor.heard([started("a", grant("g0"))], ["n1"])
    assert auditor.lost([pod("a", one)], {}, ()) == ["a is bound to n1 by g1, and ['main'] does not run by it"]
    assert auditor.lost([pod("a", one, phase="Succeeded")], {}, ()) == []
    auditor.heard([started("a", one)], ["n1"])
    assert auditor.lost([pod("a", one)], {}, ()) == []


def test_a_pending_pod_without_a_reason_is_lost(auditor: Auditor) -> None:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no room")
    waiting = Pod(metadata=Meta(name="a", uid="uid-a"), status=PodStatus(conditions=(condition,)))
    assert auditor.lost([waiting], {}, ()) == []
    assert auditor.lost([pod("b")], {}, ()) == ["b waits without a reason"]


@pytest.mark.parametrize(
    ("gone", "controlled", "lost"),
    [
        (Gone(evicted=True, planned=True), False, False),
        (Gone(evicted=True), True, True),
        (Gone(planned=True), True, True),
        (Gone(deleted=True), True, False),
        (Gone(deleted=True, planned=True), False, True),
        (Gone(), True, True),
    ],
)
def test_a_pod_that_vanished(auditor: Auditor, gone: Gone, controlled: bool, lost: bool) -> None:
    assert bool(auditor.lost([], {"a": gone}, ["a"] if controlled else [])) is lost


# --- the auditor's input ---------------------------------------------------------------------------------------


def test_a_journal_is_read_line_by_line_and_marks_a_new_process(tmp_path: Path) -> None:
    reader, path = Reader(tmp_path / "journal"), tmp_path / "journal"
    assert reader.read() == []
    writer, begun = Writer(path), started("a", grant("g1"))
    writer.write(begun)
    assert reader.read() == [Booted(), begun]
    Writer(path).write(ended("a"))
    with path.open("ab") as half:
        half.write(b'{"type":"boo')
    assert reader.read() == [Booted(), ended("a")]
    with path.open("ab") as half:
        half.write(b'ted"}\n')
    assert reader.read() == [Booted()]


def test_the_api_servers_audit_log_lists_what_the_watcher_removed(tmp_path: Path) -> None:
    def line(audit_id: str, name: str, code: int | None, **ref: str) -> str:
        stage = "RequestReceived" if code is None else "ResponseComplete"
        status = {} if code is None else {"responseStatus": {"code": code}}
        return json.dumps({"stage": stage, "auditID": audit_id, "objectRef": {"name": name, **ref}, **status})

    evicted = {"subresource": "eviction"}
    lines = [
        line("1", "taken", None, **evicted), line("1", "taken", 201, **evicted),
        line("2", "kept", None, **evicted), line("2", "kept", 429, **evicted),
        line("3", "cut-off", None, **evicted), line("4", "void", 200),
        '{"stage": "Resp',
    ]  # fmt: skip
    (tmp_path / "audit.log").write_text("\n".join(lines))
    assert removals.read(tmp_path) == {
        "taken": Gone(evicted=True), "cut-off": Gone(evicted=True), "void": Gone(deleted=True),
    }  # fmt: skip
