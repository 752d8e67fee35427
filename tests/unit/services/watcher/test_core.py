"""The watcher's core: what is sent, when, and what a snapshot holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.watcher.config import Config
from services.watcher.core import Command, Core, FirstSight, WireBatch
from services.watcher.snapshots import PAGE_LIMIT_BYTES, WirePage
from services.watcher.trimming import trim
from shared.contracts.base import decode, encode
from shared.contracts.facts import Fact, FeedBatch, Gone, Put, SnapshotPage
from shared.model.objects import Condition, Namespace, Node
from tests.support import build

BATCH_S = 0.002


@pytest.fixture
def core() -> Core:
    return Core("epoch", Config(batch_ms=2))


def batches(commands: list[Command]) -> list[FeedBatch]:
    """As a reader decodes them."""
    return [decode(encode(c), FeedBatch) for c in commands if isinstance(c, WireBatch)]


def page(wire: WirePage) -> SnapshotPage:
    return decode(encode(wire), SnapshotPage)


def named(facts: tuple[Fact, ...]) -> list[str]:
    return [("-" if isinstance(f, Gone) else "") + f.object.metadata.name for f in facts]


def test_a_single_change_is_sent_immediately(core: Core) -> None:
    sent = batches(core.facts(build.put(build.pod("a")), 10.0))
    assert [(b.epoch, b.number, named(b.facts)) for b in sent] == [("epoch", 1, ["a"])]


def test_what_follows_closely_gathers_until_it_is_due(core: Core) -> None:
    core.facts(build.put(build.pod("a")), 10.0)
    assert batches(core.facts(build.put(build.pod("b")), 10.0005)) == []
    assert batches(core.facts(build.put(build.pod("c")), 10.001)) == []
    assert core.due == pytest.approx(10.0 + BATCH_S)
    assert core.tick(10.0015) == []
    assert [named(b.facts) for b in batches(core.tick(core.due))] == [["b", "c"]]


def test_a_full_batch_does_not_wait(core: Core) -> None:
    core.facts(build.put(build.pod("first")), 10.0)
    sent = batches(core.facts(build.put(*(build.pod(f"p{i}") for i in range(150))), 10.0))
    assert [(b.number, len(b.facts)) for b in sent] == [(2, 64), (3, 64)]
    assert [(b.number, len(b.facts)) for b in batches(core.tick(10.0 + BATCH_S))] == [(4, 22)]


def test_large_objects_make_small_batches(core: Core) -> None:
    """A batch must stay below what a NATS message may hold."""
    big = [build.pod(f"p{i}", annotations={"kerf.dev/note": "x" * 100_000}) for i in range(20)]
    sent = [c for c in (*core.facts(build.put(*big), 10.0), *core.tick(10.1)) if isinstance(c, WireBatch)]
    assert sum(len(c.facts) for c in sent) == 20
    assert max(len(encode(c)) for c in sent) < 300 * 1024


def test_silence_beats(core: Core) -> None:
    core.facts(build.put(build.pod("a")), 10.0)
    assert core.due == pytest.approx(11.0)
    assert [(b.number, b.facts) for b in batches(core.tick(11.0))] == [(2, ())]
    assert core.tick(11.5) == []


def test_a_version_that_was_already_seen_is_not_reported(core: Core) -> None:
    pod = build.pod("a")
    newer = build.newer(pod)
    core.facts(build.put(newer), 10.0)
    assert core.facts(build.put(pod), 11.0) == []
    assert core.facts(build.put(newer), 12.0) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), ()),
        (
            (Condition(type="Ready", status="True", message="a"),),
            (Condition(type="Ready", status="True", message="b"),),
        ),
    ],
)
def test_a_heartbeat_of_a_node_is_no_change(core: Core, before: Any, after: Any) -> None:
    node = build.node("n")
    first = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=before))
    meta = msgspec.structs.replace(node.metadata, resource_version=build.next_version())
    second = msgspec.structs.replace(node, metadata=meta, status=msgspec.structs.replace(node.status, conditions=after))
    core.facts(build.put(first), 10.0)
    assert core.facts(build.put(second), 11.0) == []
    assert core.suppressed == 1
    assert core.find("Node", "n").metadata.resource_version == meta.resource_version


def test_a_node_that_changes_is_reported(core: Core) -> None:
    node = build.node("n")
    core.facts(build.put(node), 10.0)
    meta = msgspec.structs.replace(node.metadata, resource_version=build.next_version())
    gone_bad = (Condition(type="Ready", status="False"),)
    for number, change in enumerate((
        {"spec": msgspec.structs.replace(node.spec, unschedulable=True)},
        {"status": msgspec.structs.replace(node.status, conditions=gone_bad)},
    )):  # fmt: skip
        meta = msgspec.structs.replace(meta, resource_version=build.next_version())
        assert (
            len(batches(core.facts(build.put(msgspec.structs.replace(node, metadata=meta, **change)), 11.0 + number)))
            == 1
        )  # type: ignore[arg-type]


def test_a_new_version_of_a_pod_is_always_reported(core: Core) -> None:
    """A Binding is conditional on it, so a version that only moved matters."""
    pod = build.pod("a")
    core.facts(build.put(pod), 10.0)
    assert len(batches(core.facts(build.put(build.newer(pod)), 11.0))) == 1


def test_an_end_is_reported_once_and_keeps_its_certainty(core: Core) -> None:
    pod = build.pod("a")
    core.facts(build.put(pod), 10.0)
    sent = batches(core.facts(build.gone(pod, certain=False), 11.0))
    assert sent[0].facts == (Gone(object=pod, certain=False),)
    assert core.facts(build.gone(pod), 12.0) == []
    assert core.find("Pod", "a", "team") is None


def test_a_name_follows_its_newest_bearer(core: Core) -> None:
    first, second = build.pod("a", uid="one"), build.pod("a", uid="two")
    core.facts(build.put(first, second), 10.0)
    core.facts(build.gone(first), 11.0)
    assert core.find("Pod", "a", "team").metadata.uid == "two"


def test_a_pending_pods_trace_begins_when_it_is_first_seen(core: Core) -> None:
    pod = build.pod("a")
    strangers = (build.pod("b", scheduler="default-scheduler"), build.pod("c", node="n"))
    sights = [c.pod.metadata.name for c in core.facts(build.put(pod, *strangers), 10.0) if isinstance(c, FirstSight)]
    assert sights == ["a"]
    assert not [c for c in core.facts(build.put(build.newer(pod)), 11.0) if isinstance(c, FirstSight)]


def test_the_highest_sequence_is_remembered_from_orders_and_from_grants(core: Core) -> None:
    """A log that was wiped is known by it (rule R5)."""
    core.saw_sequence(5)
    core.saw_sequence(3)
    assert batches(core.tick(10.0))[0].log_sequence_seen == 5
    core.facts(
        build.put(build.pod("a", node="n", annotations={"kerf.dev/grant": '{"grant_id":"g","term":1,"sequence":41}'})),
        11.0,
    )
    commands, wire = core.snapshot("", 0, 12.0)
    assert wire.log_sequence_seen == 41
    assert commands == []


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 19, "\u0663"], ids=["5000 digits", "19", "Arabic"])
def test_a_sequence_that_no_log_reaches_is_not_read(core: Core, number: str) -> None:
    """A grant that others wrote must neither stop the watcher nor make the log look truncated."""
    core.facts(build.put(build.pod("a", node="n", annotations={"kerf.dev/grant": f'{{"sequence":{number}}}'})), 10.0)
    assert core.log_sequence_seen == 0


def test_a_snapshot_is_the_state_after_its_number(core: Core) -> None:
    core.facts(build.put(build.pod("a")), 10.0)
    core.facts(build.put(build.pod("b"), build.node("n")), 10.0001)
    commands, wire = core.snapshot("", 0, 10.0002)
    assert [(b.number, named(b.facts)) for b in batches(commands)] == [(2, ["b", "n"])], "what gathered goes out before"
    got = page(wire)
    assert (got.number, got.pages, got.error) == (2, 1, "")
    assert named(got.facts) == ["n", "a", "b"], "nodes come before pods"
    assert [b.number for b in batches(core.facts(build.put(build.pod("c")), 11.0))] == [3]


def test_a_large_snapshot_has_pages_within_the_limit(core: Core) -> None:
    pods = [build.pod(f"p{i}", annotations={"kerf.dev/note": "x" * 2000}) for i in range(900)]
    core.facts(build.put(*pods, Namespace(metadata=build.pod("ns").metadata)), 10.0)
    core.tick(11.0)
    _, first = core.snapshot("", 0, 12.0)
    assert first.pages > 3
    seen: list[str] = []
    core.facts(build.put(build.pod("later")), 12.5)
    for number in range(first.pages):
        _, wire = core.snapshot(first.snapshot, number, 13.0)
        assert len(encode(wire)) <= PAGE_LIMIT_BYTES
        assert page(wire).number == first.number
        seen += [f.object.metadata.name for f in page(wire).facts if isinstance(f, Put)]
    assert sorted(seen) == sorted([*(p.metadata.name for p in pods), "ns"]), "as of its number: not what came later"


def test_an_unread_snapshot_expires() -> None:
    core = Core("e", Config(snapshot_ttl_s=5.0))
    core.facts(build.put(build.pod("a")), 10.0)
    _, first = core.snapshot("", 0, 10.0)
    core.tick(14.0)
    assert core.snapshot(first.snapshot, 0, 14.0)[1].error == ""
    core.tick(20.0)
    assert "expired" in core.snapshot(first.snapshot, 0, 20.0)[1].error


@pytest.mark.parametrize(("name", "number"), [("", 1), ("", -1), ("other", 0)])
def test_a_missing_page_is_answered_with_an_error(core: Core, name: str, number: int) -> None:
    assert "start again" in core.snapshot(name, number, 10.0)[1].error


def test_long_foreign_annotations_are_dropped_and_kerfs_are_kept() -> None:
    notes = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "long": "x" * 5000,
        "short": "s",
        "kerf.dev/long": "y" * 5000,
    }
    assert trim(build.pod("a", annotations=notes)).metadata.annotations == {"short": "s", "kerf.dev/long": "y" * 5000}


@pytest.mark.parametrize(("size", "full"), [(240 * 1024 - 1, False), (240 * 1024, True)])
def test_whether_annotations_leave_space_for_a_grant_is_recorded(size: int, full: bool) -> None:
    """The API server would add the grant beyond its own limit, and refuse every later write to the pod."""
    assert trim(build.pod("a", annotations={"k": "x" * size})).metadata.annotations_full is full


def test_a_namespace_with_unchanged_labels_is_no_change(core: Core) -> None:
    meta = build.pod("ns").metadata
    core.facts(build.put(Namespace(metadata=meta)), 10.0)
    moved = msgspec.structs.replace(meta, resource_version=build.next_version())
    assert core.facts(build.put(Namespace(metadata=moved)), 11.0) == []
    labelled = msgspec.structs.replace(moved, resource_version=build.next_version(), labels={"a": "b"})
    assert len(core.facts(build.put(Namespace(metadata=labelled)), 12.0)) == 1


def test_nodes_are_found_by_name(core: Core) -> None:
    node = build.node("n")
    core.facts(build.put(node), 10.0)
    found = core.find("Node", "n")
    assert isinstance(found, Node)
    assert core.find("Node", "m") is None
    core.facts(build.gone(node), 11.0)
    assert core.find("Node", "n") is None
