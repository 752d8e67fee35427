"""The fleet as the page draws it: slices in and out, changes since a number, pending pods, decisions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.metrics.page.fleet import MAX_QUEUE, NEWEST_DECISIONS, Fleet
from services.metrics.usage import Began
from shared.contracts.events import (
    GpuStateChanged,
    GrantEnded,
    PlacementDecided,
    PlacementRejected,
    SliceEnforced,
    SliceReleased,
)
from shared.contracts.explain import PodExplanation, Reason
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant


def inventory(node: str = "n1", gpus: int = 2) -> Inventory:
    made = tuple(Gpu(uuid=f"{node}-{i}", index=i, model="H200", memory_mib=1000) for i in range(gpus))
    return Inventory(node=node, boot_id="b", gpus=made)


def pod(name: str) -> dict[str, Any]:
    return {"uid": f"u-{name}", "namespace": "team", "name": name}


def decided(name: str, *gpus: str, node: str = "n1") -> PlacementDecided:
    shares = tuple(GpuShare(node=node, uuid=uuid, memory_mib=400, compute_milli=200) for uuid in gpus)
    container = ContainerGrant(strategy="advisory", gpus=shares)
    grant = Grant(grant_id=f"g-{name}", term=1, containers={"main": container})
    return PlacementDecided(node=node, term=1, sequence=1, grant=grant, waited_ms=1500, **pod(name))


def enforced(name: str, *gpus: str, node: str = "n1") -> SliceEnforced:
    return SliceEnforced(
        node=node, container="main", grant_id=f"g-{name}", strategy="interposer", promise="firm",
        gpus=dict.fromkeys(gpus, (400, 200)), **pod(name),
    )  # fmt: skip


def rejected(name: str, sentence: str = "too full", waiting_s: float = 0.0) -> PlacementRejected:
    why = PodExplanation(
        namespace="team", name=name, state="waiting", sentence=sentence, waiting_s=waiting_s,
        summary=(Reason(code="gpu-full", sentence="too little"),), helps=("ask for less",),
    )  # fmt: skip
    return PlacementRejected(explanation=why, **pod(name))


def fleet(*events: Any) -> Fleet:
    made = Fleet()
    made.inventory("n1", inventory())
    for second, event in enumerate(events):
        made.event(event, 100.0 + second)
    return made


def phases(made: Fleet) -> list[tuple[str, str, str]]:
    return [(row[0], row[5], row[3]) for node in made.changes(0).nodes for row in node.slices]


def test_a_slice_starts_with_its_decision_and_runs_from_its_enforcement() -> None:
    assert phases(fleet(decided("a", "n1-0"))) == [("n1-0", "a", "starting")]


def test_a_pod_that_is_decided_again_is_drawn_once() -> None:
    first, again = decided("a", "n1-0"), decided("a", "n1-1")
    grant = msgspec.structs.replace(again.grant, grant_id="g-again")
    seen = fleet(first, msgspec.structs.replace(again, grant=grant), first)
    assert phases(seen) == [("n1-1", "a", "starting")]
    assert phases(fleet(decided("a", "n1-0"), enforced("a", "n1-0"))) == [("n1-0", "a", "running")]
    assert phases(fleet(enforced("a", "n1-0"), decided("a", "n1-0"))) == [("n1-0", "a", "running")], "redelivered"


def test_a_slice_on_the_host_is_on_no_gpu_and_the_page_says_so() -> None:
    made = fleet(decided("a", "n1-0"), enforced("a", "n1-0"), enforced("a"))
    assert phases(made) == []
    assert made.changes(0).decisions[0].text == "main on n1: suspended, its memory is on the host"
    made.event(enforced("a", "n1-1"), 300.0)
    assert phases(made) == [("n1-1", "a", "running")]


def test_a_slice_is_gone_when_its_grant_has_ended_in_whatever_order_that_is_heard() -> None:
    ended = GrantEnded(node="n1", grant_id="g-a", **pod("a"))
    released = SliceReleased(node="n1", grant_id="g-a", boot_id="b", **pod("a"))
    for story in (
        (decided("a", "n1-0"), enforced("a", "n1-0"), ended),
        (enforced("a", "n1-0"), released, ended),
        (ended, decided("a", "n1-0"), enforced("a", "n1-0")),
    ):
        assert phases(fleet(*story)) == []


def test_what_has_not_started_is_known_by_its_grant() -> None:
    made = fleet(decided("a", "n1-0"), decided("b", "n1-1"), enforced("b", "n1-1"))
    assert made.starting() == {"g-a"}
    made.end("g-a")
    assert (made.starting(), phases(made)) == (set(), [("n1-1", "b", "running")])


def test_a_browser_gets_only_what_it_has_not_seen() -> None:
    made = fleet(decided("a", "n1-0"))
    made.inventory("n2", inventory("n2"))
    seen = made.version
    nothing = made.changes(seen)
    assert (nothing.nodes, nothing.gone, nothing.decisions, nothing.queue) == ((), (), (), None)
    made.event(enforced("b", "n2-0", node="n2"), 200.0)
    change = made.changes(seen)
    assert [node.name for node in change.nodes] == ["n2"]
    assert [(said.kind, said.name) for said in change.decisions] == [("enforced", "b")]
    assert made.changes(change.version).nodes == ()


def test_a_node_that_retires_is_gone_and_may_come_back() -> None:
    made = fleet()
    seen = made.version
    made.inventory("n1", None)
    assert (made.changes(seen).gone, made.changes(0).nodes, made.changes(0).gone) == (("n1",), (), ())
    made.inventory("n1", inventory())
    assert (made.changes(seen).gone, [node.name for node in made.changes(seen).nodes]) == ((), ["n1"])


@pytest.mark.parametrize("lost", [None, inventory(gpus=0)], ids=["gone", "empty"])
def test_a_node_that_comes_back_has_its_slices(lost: Inventory | None) -> None:
    """After NATS lost its volume, GPUs that were used were shown as free."""
    made = fleet(enforced("a", "n1-1"), enforced("b", "n1-0"))
    seen = made.version
    made.inventory("n1", lost)
    made.event(SliceReleased(node="n1", grant_id="g-b", boot_id="b", **pod("b")), 300.0)
    made.event(enforced("c", "n1-0"), 301.0)
    assert (made.changes(0).nodes, made.changes(seen).gone) == ((), ("n1",))
    made.inventory("n1", inventory())
    assert phases(made) == [("n1-1", "a", "running"), ("n1-0", "c", "running")]
    assert [node.slices for node in made.changes(seen).nodes] == [node.slices for node in made.changes(0).nodes]


@pytest.mark.parametrize("since", [5_000_001, 99_000_000])
def test_a_number_of_another_process_gets_everything_and_is_told_to_forget(since: int) -> None:
    """Of an earlier one, which has counted further or less far; this one started at second 6."""
    made = Fleet(6_000)
    made.inventory("n1", inventory())
    made.event(decided("a", "n1-0"), 1.0)
    change = made.changes(since)
    assert (change.reset, len(change.nodes), len(change.decisions)) == (True, 1, 1)
    assert made.changes(0).reset is made.changes(change.version).reset is False


def test_a_pending_pod_waits_from_its_first_sight_until_it_is_decided() -> None:
    made = fleet(rejected("a", waiting_s=40.0), rejected("a", "still full"), rejected("b"))
    queue = made.changes(0).queue
    assert queue is not None
    assert [(p.name, p.since_s, p.sentence, p.code, p.helps) for p in queue] == [
        ("a", 60.0, "still full", "gpu-full", "ask for less"),
        ("b", 102.0, "too full", "gpu-full", "ask for less"),
    ]
    made.event(decided("a", "n1-0"), 200.0)
    assert [p.name for p in made.changes(0).queue or ()] == ["b"]


def test_a_deleted_pod_leaves_the_queue_when_placement_no_longer_lists_it() -> None:
    """Its deletion is no event."""
    made = fleet(rejected("a"), rejected("b"))
    made.reconcile(("u-b",), 2)
    assert made.changes(0).pending == 2, "placement has not named all of them"
    made.reconcile(("u-b",), 1)
    assert [p.name for p in made.changes(0).queue or ()] == ["b"]


def test_what_is_sent_is_bounded() -> None:
    made = fleet(*(rejected(f"p{i}") for i in range(MAX_QUEUE + 10)))
    change = made.changes(0)
    assert (len(change.queue or ()), change.pending, len(change.decisions)) == (
        MAX_QUEUE,
        MAX_QUEUE + 10,
        NEWEST_DECISIONS,
    )
    assert change.decisions[0].name == f"p{MAX_QUEUE + 9}", "the newest first"


def test_a_pods_slices_are_told_with_what_they_use() -> None:
    made = fleet(enforced("a", "n1-1"))
    use = SliceUse(
        uid="u-a", namespace="team", name="a", container="main", memory_mib=123, granted_memory_mib=400,
        granted_compute_milli=200,
    )  # fmt: skip
    made.sample(UsageSample(node="n1", at_ms=1, gpus=(GpuUse(uuid="n1-1", used_mib=123, slices=(use,)),)))
    (told,) = made.slices_of("team", "a")
    assert (told["node"], told["model"], told["gpu_memory_mib"], told["strategy"], told["use"]) == (
        "n1", "H200", 1000, "interposer", use
    )  # fmt: skip
    assert made.slices_of("team", "b") == []
    lie = msgspec.structs.replace(use, memory_mib=1)
    made.sample(UsageSample(node="n2", at_ms=2, gpus=(GpuUse(uuid="n1-1", used_mib=1, slices=(lie,)),)))
    assert made.slices_of("team", "a") == [told], "another node knows nothing of it"


def test_slices_from_before_a_restart_are_shown() -> None:
    made = Fleet()
    made.restore([Began("g-a", "main", "u-a", "team", "a", "n1", "H200", 0, (("n1-0", 400, 200),))])
    made.inventory("n1", inventory())
    assert phases(made) == [("n1-0", "a", "running")]
    made.event(GrantEnded(node="n1", grant_id="g-a", **pod("a")), 1.0)
    assert phases(made) == []


def test_a_gpu_that_changes_state_is_a_line() -> None:
    made = fleet(GpuStateChanged(node="n1", uuid="n1-0", state="unhealthy", reason="XID 79"))
    assert [said.text for said in made.changes(0).decisions] == ["n1-0 is unhealthy: XID 79"]
