"""Live resize: what is booked, written and told when. The node's agent is the real core; the API server is the test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.node_agent import messages as a
from services.node_agent.core import Agent
from services.node_agent.state import Checkpoint
from services.placement import messages as m
from services.placement.protocol.nodes import RESEND_S
from shared.contracts.commands import AmendGrant, AnnounceEvent, TouchPod
from shared.contracts.facts import Put
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.node_commands import Accepted, NodeSync, NodeSyncAnswer
from shared.model import names
from shared.model.grant import ContainerGrant, Grant, decode_grant, encode_grant
from shared.model.kube_object import Meta
from shared.model.objects import Pod, ResourceQuota
from shared.model.resize import next_amendment
from shared.model.suspension import SuspendAction, Suspension, encode_suspension
from tests.support import build
from tests.support.harness.placement import Placement, Respond, only
from tests.support.whatif import why

GPU_MIB = 81_920
STRATEGIES = ("exclusive", "advisory", "interposer", "time_slice")


class World:
    """One GPU on which slices of 16 GiB and 20 % run."""

    def __init__(self, *names_: str, **config: Any) -> None:
        self.inventory = build.inventory("n", gpus=1, strategies=STRATEGIES)
        self.agent = Agent("n")
        self.agent.handle(a.InventorySeen(self.inventory), 0.0)
        self.used_mib: dict[str, int] = {}
        """By pod: what its program has."""
        self.delays = False
        """Whether slices take their time to be resized: until `late`."""
        self.loses_grants = False
        """Whether orders about grants do not reach the node."""
        self.promises_by_sync = True
        """Whether it reads of a sync what it is to use less of: an agent of the version before does not."""
        self._under_way: list[a.ResizeSlices] = []
        self.placement = Placement(respond=self._respond, **{"resize_beyond_request": True} | config)
        self.placement.facts(build.node("n"))
        self.placement.send(m.InventorySeen(self.inventory))
        self.pods: dict[str, Pod] = {}
        for name in names_:
            self.run(name)

    def run(self, name: str, priority: int = 0) -> None:
        self.placement.facts(slice_pod(name, priority=priority))
        order = self.placement.binds()[f"uid-team-{name}"]
        self.see(build.bound(slice_pod(name, priority=priority), "n", decode_grant(order.grant)))
        assert self.agent.handle(a.StartRequested(f"uid-team-{name}", "c"), 0.0)

    def _respond(self, command: m.Command, answers: Respond) -> list[m.Input]:
        match command:
            case m.SendSync():
                (body,) = self._asked(a.SyncReceived(self._as_read(command.sync)))
                assert isinstance(body, NodeSyncAnswer)
                return [m.SyncAnswered(body)]
            case m.SendGrant() if self.loses_grants:
                return []
            case m.SendGrant():
                return [acknowledged(body) for body in self._asked(a.GrantReceived(command.grant))]
            case m.SendRelease():
                return []
        return answers(command)

    def _as_read(self, sync: NodeSync) -> NodeSync:
        if self.promises_by_sync:
            return sync
        grants = tuple(msgspec.structs.replace(grant, shrink=None) for grant in sync.grants)
        return msgspec.structs.replace(sync, grants=grants)

    def lose_checkpoint(self) -> list[m.Command]:
        """All containers end with it, and start again."""
        self.agent = Agent("n", Checkpoint(node="n", checkpoint_id="another"))
        self.inventory = msgspec.structs.replace(self.inventory, checkpoint_id="another")
        self.agent.handle(a.InventorySeen(self.inventory), 0.0)
        said = self.placement.send(m.InventorySeen(self.inventory))
        for name in self.pods:
            assert self.agent.handle(a.StartRequested(f"uid-team-{name}", "c"), 0.0)
        return said

    def _asked(self, event: a.Input) -> list[Any]:
        orders = self.agent.handle(event, 0.0)
        bodies = [order.body for order in orders if isinstance(order, a.Answer)]
        for order in orders:
            if isinstance(order, a.ResizeSlices) and self.delays:
                self._under_way.append(order)
            elif isinstance(order, a.ResizeSlices):
                bodies += self._asked(a.ResizeDone(order.request, order.task, self._beyond(order.task)))
            elif isinstance(order, a.SuspendSlices):
                bodies += self._asked(a.SuspensionDone(order.request, tuple(map(a.SuspendResult, order.tasks))))
        return bodies

    def late(self) -> None:
        """The slices are resized at last. The answers are lost."""
        for order in self._under_way:
            self.agent.handle(a.ResizeDone(order.request, order.task), 0.0)
        self._under_way.clear()

    def _beyond(self, task: a.ResizeTask) -> str:
        used = self.used_mib.get(task.uid.removeprefix("uid-team-"), 0)
        return f"it has {used} MiB" if task.shrinks and used > mib_of(task.after) else ""

    def see(self, pod: Pod) -> list[m.Command]:
        self.pods[pod.metadata.name] = pod
        return self.placement.send(m.FactsSeen((Put(object=pod),)))

    def annotate(self, name: str, **annotations: str) -> list[m.Command]:
        pod = self.pods[name]
        notes = pod.metadata.annotations | {f"kerf.dev/{key}": text for key, text in annotations.items()}
        meta = msgspec.structs.replace(pod.metadata, resource_version=build.next_version(), annotations=notes)
        return self.see(msgspec.structs.replace(pod, metadata=meta))

    def write(self, order: AmendGrant) -> bool:
        """As the API server: False for another version (409)."""
        if self.pods[order.name].metadata.resource_version != order.resource_version:
            return False
        self.annotate(order.name, grant=order.grant)
        return True

    def resize(self, name: str, text: str) -> None:
        """As far as it gets at once."""
        done = len(amendments(self.placement.commands))
        self.annotate(name, resize=text)
        while orders := amendments(self.placement.commands)[done:]:
            done += len(orders)
            for order in orders:
                self.write(order)

    def granted_mib(self, name: str) -> int:
        return mib_of(decode_grant(self.pods[name].metadata.annotations[names.ANNOTATION_GRANT]))

    def node_mib(self, name: str) -> int:
        (live,) = [live for live in self.agent.store.in_force("n") if live.name == name]
        ((mib, _),) = live.gpus.values()
        return mib

    def free_mib(self) -> int:
        (room,) = self.placement.core.book.nodes["n"].gpus
        return room.free_mib

    def all_mib(self, name: str) -> tuple[int, int, int]:
        """Of a pod's memory: by the node, by the annotation, by the book."""
        held = self.placement.core.book.grants[self.placement.core.book.pods[f"uid-team-{name}"].grant_id]
        return self.node_mib(name), self.granted_mib(name), mib_of(held.grant)

    def wait(self, seconds: float) -> list[m.Command]:
        said: list[m.Command] = []
        for _ in range(round(seconds)):
            self.placement.now += 1
            said += self.placement.send(m.BeatSeen(("n",))) + self.placement.send(m.Tick())
        return said

    def succeeded(self, *records: Any, complete: bool) -> World:
        """The same world under another leader. Its log has `records` and is complete, or is new."""
        before = self.placement
        log = (*before.log, *records) if complete else ()
        after = Placement(
            term=before.sequence + 100, records=log, respond=self._respond, begins=False, resize_beyond_request=True
        )
        after.objects = build.put(build.node("n"), *self.pods.values())
        after.now = before.now
        self.placement = after
        after.send(after.beginning)
        after.send(m.InventorySeen(self.inventory))
        return self

    def explained(self, name: str) -> Any:
        return why(self.placement, name).resize


def slice_pod(name: str, priority: int = 0) -> Pod:
    return build.gpu_pod(
        name, memory="16Gi", compute=20, priority=priority, annotations={names.ANNOTATION_ISOLATION: "firm"}
    )


def acknowledged(body: Accepted) -> m.GrantAcknowledged:
    return m.GrantAcknowledged(
        body.node,
        body.grant_id,
        body.ok,
        body.reason,
        suspension=body.suspension,
        dead=body.dead,
        amendment=body.amendment,
        shrunk=body.shrunk,
        not_resized=body.not_resized,
        number=body.number,
    )


def mib_of(grant: Grant) -> int:
    return sum(share.memory_mib for part in grant.containers.values() for share in part.gpus)


def sized(grant: Grant, mib: int) -> dict[str, ContainerGrant]:
    """Its containers, with this much memory of each GPU."""
    return {
        name: msgspec.structs.replace(
            part, gpus=tuple(msgspec.structs.replace(share, memory_mib=mib) for share in part.gpus)
        )
        for name, part in grant.containers.items()
    }


def amendments(said: list[m.Command]) -> list[AmendGrant]:
    return [p for c in only(said, m.SendPatches) for p in c.patches if isinstance(p, AmendGrant)]


def events(said: list[m.Command]) -> list[AnnounceEvent]:
    return [p for c in only(said, m.SendPatches) for p in c.patches if isinstance(p, AnnounceEvent)]


def test_a_growth_is_booked_logged_written_and_told_in_this_order() -> None:
    world = World("p")
    said = world.annotate("p", resize="memory=40Gi,compute=50")
    kinds = [type(c) for c in said if isinstance(c, m.Append | m.SendPatches | m.SendGrant)]
    assert kinds == [m.Append, m.SendPatches]
    (order,) = amendments(said)
    assert world.all_mib("p") == (16384, 16384, 40960)
    assert decode_grant(order.grant).amendment == 1
    assert decode_grant(order.grant).grant_id == world.placement.core.book.pods["uid-team-p"].grant_id
    assert world.write(order)
    assert world.all_mib("p") == (40960, 40960, 40960)
    assert world.explained("p").phase == "done"


def restored(world: World, backup: Pod, **annotations: str) -> None:
    """etcd is restored, by the guide: the pod is as it was, and the log is new."""
    notes = backup.metadata.annotations | {f"kerf.dev/{key}": text for key, text in annotations.items()}
    world.pods["p"] = build.newer(backup, annotations=notes)
    world.succeeded(complete=False)


def last_amendment(world: World) -> AmendGrant:
    return amendments(world.placement.commands)[-1]


def test_what_slices_have_is_booked_and_annotated_again_after_a_restore_of_etcd() -> None:
    world = World("p")
    backup = world.pods["p"]
    world.resize("p", "memory=40Gi")
    restored(world, backup)
    assert world.all_mib("p") == (40960, 16384, 40960), "before anything else is placed there"
    order = last_amendment(world)
    assert decode_grant(order.grant).amendment == 2, "its node passes over another one of number 1"
    assert world.write(order)
    assert world.all_mib("p") == (40960, 40960, 40960)
    world.resize("p", "memory=20Gi")
    assert world.all_mib("p") == (20480, 20480, 20480)


def test_slices_that_have_less_than_a_restored_grant_are_annotated_too() -> None:
    world = World("p")
    world.resize("p", "memory=40Gi")
    backup = world.pods["p"]
    world.resize("p", "memory=4Gi")
    restored(world, backup, resize="memory=4Gi")
    assert world.all_mib("p") == (4096, 40960, 40960)
    assert world.write(last_amendment(world))
    assert world.all_mib("p") == (4096, 4096, 4096)


def test_a_lost_amendment_to_the_same_amounts_is_annotated_too() -> None:
    """By an earlier number the pod would be amended to nothing that its node takes for new: neither would a promise
    end that the node has made since, nor would it make another one."""
    world = World("p")
    world.resize("p", "memory=40Gi")
    backup = world.pods["p"]
    world.resize("p", "memory=60Gi")
    world.resize("p", "memory=40Gi")
    world.annotate("p", resize="memory=20Gi")
    assert world.all_mib("p") == (20480, 40960, 40960), "promised, and not written yet"
    restored(world, backup)
    assert world.write(last_amendment(world))
    assert world.all_mib("p") == (40960, 40960, 40960)
    world.resize("p", "memory=20Gi")
    assert world.all_mib("p") == (20480, 20480, 20480)


@pytest.mark.parametrize("suspended_s", [0, 30])
def test_what_a_suspended_pod_has_by_a_lost_amendment_is_booked_when_it_has_resumed(suspended_s: int) -> None:
    world = World("p")
    backup = world.pods["p"]
    world.resize("p", "memory=40Gi")
    restored(world, backup, suspended=encode_suspension(Suspension(action="pause", plan_id="x")))
    world.wait(suspended_s)
    pod = world.pods["p"]
    world.see(build.newer(pod, annotations={**pod.metadata.annotations, names.ANNOTATION_SUSPENDED: ""}))
    world.wait(7)
    assert world.write(last_amendment(world))
    assert world.all_mib("p") == (40960, 40960, 40960)


def test_a_growth_that_may_be_under_way_is_booked_beside_a_lost_one() -> None:
    """It has the number of the lost amendment, and may still be written at the pod's version."""
    world = World("p")
    backup = world.pods["p"]
    world.resize("p", "memory=40Gi")
    restored(world, backup, resize="memory=60Gi")
    assert world.all_mib("p") == (40960, 16384, 61440)
    given = decode_grant(world.pods["p"].metadata.annotations[names.ANNOTATION_GRANT])
    late = msgspec.structs.replace(given, amendment=1, containers=sized(given, 61440))
    world.annotate("p", grant=encode_grant(late))
    assert world.all_mib("p") == (40960, 61440, 61440)
    world.resize("p", "memory=60Gi")
    while world.write(last_amendment(world)):
        pass
    assert world.all_mib("p") == (61440, 61440, 61440)


def test_a_lost_amendment_is_not_forgotten_at_the_next_edit_of_its_pod() -> None:
    world = World("p")
    backup = world.pods["p"]
    world.resize("p", "memory=40Gi")
    restored(world, backup)
    earlier = last_amendment(world)
    world.annotate("p", other="edit")
    assert world.all_mib("p") == (40960, 16384, 40960)
    assert not world.write(earlier)
    assert world.write(last_amendment(world))
    assert world.all_mib("p") == (40960, 40960, 40960)


def test_memory_is_taken_back_by_the_node_first_and_freed_last() -> None:
    world = World("p")
    (order,) = amendments(world.annotate("p", resize="memory=4Gi"))
    assert world.all_mib("p") == (4096, 16384, 16384)
    assert world.write(order)
    assert world.all_mib("p") == (4096, 4096, 4096)
    assert world.free_mib() == GPU_MIB - 4096


def test_memory_that_is_used_is_not_taken_and_is_asked_for_again() -> None:
    world = World("p")
    world.used_mib["p"] = 10_000
    said = world.annotate("p", resize="memory=4Gi")
    assert not amendments(said)
    (event,) = events(said)
    assert event.reason == "ResizePending"
    assert "it has 10000 MiB" in event.note
    assert world.all_mib("p") == (16384, 16384, 16384)
    assert world.explained("p").phase == "waiting"
    world.used_mib["p"] = 4096
    (order, *_) = amendments(world.wait(10))
    assert world.write(order)
    assert world.all_mib("p") == (4096, 4096, 4096)


def test_a_resize_up_and_down_at_once_shrinks_first() -> None:
    world = World("p")
    world.resize("p", "memory=8Gi,compute=80")
    grant = decode_grant(world.pods["p"].metadata.annotations[names.ANNOTATION_GRANT])
    assert grant.amendment == 2
    assert world.all_mib("p") == (8192, 8192, 8192)
    assert grant.containers["c"].gpus[0].compute_milli == 800


def test_a_growth_that_does_not_fit_waits_and_says_what_lacks() -> None:
    world = World("p", "q", "r")
    said = world.annotate("p", resize="memory=60Gi")
    assert not amendments(said)
    (event,) = events(said)
    assert "Insufficient memory on GPU" in event.note
    assert "it needs 44 GiB more, and 32 GiB of 80 GiB are free" in event.note
    assert world.explained("p").phase == "waiting"
    world.resize("q", "memory=1Gi")
    for order in amendments(world.wait(6)):
        world.write(order)
    assert world.all_mib("p") == (61440, 61440, 61440)


def test_the_more_important_growth_goes_first() -> None:
    world = World("low")
    world.run("high", priority=10)
    world.run("full")
    world.annotate("low", resize="memory=60Gi")
    world.annotate("high", resize="memory=60Gi")
    world.resize("full", "memory=1Gi")
    world.wait(6)
    assert world.all_mib("high") == (61440, 61440, 61440)
    assert world.all_mib("low") == (16384, 16384, 16384)


def test_a_growth_for_another_version_is_given_back_and_booked_again() -> None:
    world = World("p")
    (order,) = amendments(world.annotate("p", resize="memory=40Gi"))
    (second,) = amendments(world.annotate("p", resize="memory=20Gi"))
    assert not world.write(order)
    assert world.all_mib("p") == (16384, 16384, 20480)
    assert world.write(second)
    assert world.all_mib("p") == (20480, 20480, 20480)


def test_a_promise_that_is_not_wanted_any_more_is_withdrawn() -> None:
    world = World("p")
    (late,) = amendments(world.annotate("p", resize="memory=4Gi"))
    assert world.node_mib("p") == 4096
    (order,) = amendments(world.annotate("p", resize="memory=16Gi"))
    assert decode_grant(order.grant).amendment == 1
    assert not world.write(late)
    assert world.write(order)
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_what_cannot_be_resized_is_refused_by_an_event_once() -> None:
    world = World("p")
    for text, words in (
        ("memory=0", "write bytes such as 12Gi"),
        ("speed=3", "write amounts such as memory=12Gi,compute=40"),
        ("other:memory=4Gi", "names container 'other'; those with GPUs are c"),
        ("compute=120", "at most 100"),
    ):
        (event,) = events(world.annotate("p", resize=text))
        assert event.reason == "ResizeRefused"
        assert words in event.note
    assert not events(world.wait(20))
    assert world.all_mib("p") == (16384, 16384, 16384)
    assert world.explained("p").phase == "refused"


def test_a_namespace_with_a_quota_of_gpus_grows_up_to_its_requests() -> None:
    world = World("p")
    quota = ResourceQuota(
        metadata=Meta(name="gpus", namespace="team", uid="q", resource_version=build.next_version()),
        spec={"hard": {"requests.kerf.dev/gpu-memory": "64Gi"}},
    )
    world.placement.facts(quota)
    (event,) = events(world.annotate("p", resize="memory=17Gi"))
    assert "ResourceQuota gpus counts what pods request, and container c requests 16 GiB of GPU memory" in event.note
    world.resize("p", "memory=4Gi")
    world.resize("p", "memory=16Gi")
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_a_new_leader_takes_over_the_growths_in_the_log() -> None:
    world = World("p")
    (late,) = amendments(world.annotate("p", resize="memory=40Gi"))
    world.succeeded(complete=True)
    assert world.all_mib("p") == (16384, 16384, 40960)
    assert world.write(late)
    assert world.all_mib("p") == (40960, 40960, 40960)


def test_a_new_leader_without_the_log_counts_what_may_be_written_and_logs_it_before_it_is_ready() -> None:
    world = World("p")
    (late,) = amendments(world.annotate("p", resize="memory=40Gi"))
    world.succeeded(complete=False)
    log = [record for _, record in world.placement.log]
    (grown,) = [record for record in log if isinstance(record, DecisionBatch)]
    assert [one.uid for one in grown.amendments] == ["uid-team-p"]
    assert isinstance(log[log.index(grown) + 1], ReadyRecord)
    assert world.all_mib("p") == (16384, 16384, 40960)
    assert world.write(late)
    assert world.all_mib("p") == (40960, 40960, 40960)


def test_a_growth_that_may_be_written_and_does_not_fit_is_ended_by_a_touch() -> None:
    world = World("p", "q")
    world.annotate("p", resize="memory=70Gi")
    world.succeeded(complete=False)
    assert not amendments(world.placement.send(m.TermRenewed(world.placement.sequence + 50)))
    touched = [p for c in only(world.wait(6), m.SendPatches) for p in c.patches if isinstance(p, TouchPod)]
    assert {order.uid for order in touched} == {"uid-team-p"}
    world.annotate("p", touched="1")
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_a_new_leader_learns_of_promises_by_the_sync() -> None:
    world = World("p")
    world.annotate("p", resize="memory=4Gi")
    world.succeeded(complete=True)
    assert world.all_mib("p") == (4096, 16384, 16384)
    said = world.annotate("p", resize="memory=16Gi")
    (order, *_) = amendments(said + world.wait(6))
    assert world.write(order)
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_a_promise_ends_with_the_checkpoint_of_its_node() -> None:
    """Its containers have ended, and start again with all that is granted."""
    world = World("p")
    assert amendments(world.annotate("p", resize="memory=4Gi"))
    world.promises_by_sync = False
    said = world.lose_checkpoint()
    world.used_mib["p"] = 10_000
    assert not amendments(said + world.wait(10))
    assert world.all_mib("p") == (16384, 16384, 16384)
    world.used_mib["p"] = 4096
    (order, *_) = amendments(world.wait(60))
    assert world.write(order)
    assert world.all_mib("p") == (4096, 4096, 4096)


@pytest.mark.parametrize("another_leader", [False, True])
def test_no_container_starts_with_more_than_what_an_amendment_on_its_way_leaves(another_leader: bool) -> None:
    """It was ordered by a promise that was lost with the node's checkpoint."""
    world = World("p", "other")
    (order,) = amendments(world.annotate("p", resize="memory=4Gi"))
    if another_leader:
        world.succeeded(complete=True)
    world.lose_checkpoint()
    assert (world.node_mib("p"), world.node_mib("other")) == (4096, 16384)
    assert world.write(order)
    assert world.all_mib("p") == (4096, 4096, 4096)


@pytest.mark.parametrize("note", ["suspended", "resize"])
def test_a_sync_asks_for_less_only_where_that_can_be_amended(note: str) -> None:
    world = World("p")
    world.annotate("p", **{"resize": "memory=4Gi"} | {note: '{"action":"pause","plan_id":"plan"}'})
    (sync,) = only(world.lose_checkpoint(), m.SendSync)
    assert [grant.shrink for grant in sync.sync.grants] == [None]


def test_slices_that_run_are_asked_for_less_after_a_sync() -> None:
    """By an order of its own: what their programs have is looked at first, and a sync waits for nothing."""
    world = World("p")
    world.loses_grants = True
    world.annotate("p", resize="memory=4Gi")
    world.succeeded(complete=True)
    assert world.node_mib("p") == 16384
    world.loses_grants = False
    assert amendments(world.wait(1))
    assert world.node_mib("p") == 4096


def test_a_pod_that_was_moved_comes_back_though_it_wants_less() -> None:
    """A new leader learns by the answer to the sync that its memory is on the host, and asks for no less until it is
    back."""
    world = World("p")
    world.annotate("p", resize="memory=4Gi")
    world.succeeded(complete=True)
    core, grant_id = world.placement.core, world.placement.core.book.pods["uid-team-p"].grant_id
    given = core.book.grants[grant_id].given
    core.book.grants[grant_id].shrink = next_amendment(given, sized(given, 4096))
    core.book.park(grant_id)
    core.resizer.synced(NodeSyncAnswer(node="n", boot_id="boot-1", term=1, accepted=True), 0.0)
    assert core.book.grants[grant_id].shrink is None


@pytest.mark.parametrize("action", ["pause", "checkpoint"])
def test_a_suspended_pod_is_not_asked_again_and_again(action: SuspendAction) -> None:
    world = World("p")
    world.used_mib["p"] = 10_000
    world.annotate("p", resize="memory=4Gi")
    suspension = encode_suspension(Suspension(action=action, plan_id="plan"))
    world.annotate("p", suspended=suspension)
    world.wait(20)
    assert not only(world.wait(60), m.SendGrant)


def test_a_late_answer_to_an_earlier_order_ends_no_repetition() -> None:
    """The order to use less was carried out and its answer is lost, as is the order to use all again."""
    world = World("p")
    held = world.placement.core.book.grants[world.placement.core.book.pods["uid-team-p"].grant_id]
    (early,) = world._asked(a.GrantReceived(world.placement.core.nodes.node_grant(held, "n")))
    world.loses_grants = True
    world.annotate("p", resize="memory=4Gi")
    world._asked(a.GrantReceived(only(world.placement.commands, m.SendGrant)[-1].grant))
    world.annotate("p", resize="memory=16Gi")
    world.loses_grants = False
    world.placement.send(acknowledged(early))
    assert world.node_mib("p") == 4096
    for order in amendments(world.wait(20)):
        world.write(order)
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_a_withdrawal_is_not_done_while_the_slices_have_less() -> None:
    world = World("p")
    world.delays = True
    world.annotate("p", resize="memory=4Gi")
    world.annotate("p", resize="memory=16Gi")
    (order,) = world._under_way
    for answer in world.agent.handle(a.ResizeDone(order.request, order.task), 0.0):
        if isinstance(answer, a.Answer):
            world.placement.send(acknowledged(answer.body))
    assert (world.node_mib("p"), world.explained("p").phase) == (4096, "applying")


def test_a_new_leader_takes_over_a_recovered_amendment_of_a_pod_without_the_annotation() -> None:
    """Its node has lost its checkpoint meanwhile, and does not say so."""
    world = World("p")
    backup = world.pods["p"]
    world.resize("p", "memory=40Gi")
    restored(world, backup)
    late = last_amendment(world)
    assert names.ANNOTATION_RESIZE not in world.pods["p"].metadata.annotations
    world.agent = Agent("n", Checkpoint(node="n", checkpoint_id="another"))
    world.inventory = msgspec.structs.replace(world.inventory, checkpoint_id="another")
    world.agent.handle(a.InventorySeen(world.inventory), 0.0)
    world.succeeded(complete=True)
    assert world.free_mib() == GPU_MIB - 40_960
    assert world.write(late)
    assert world.free_mib() == GPU_MIB - 40_960


def test_a_promise_from_before_the_checkpoint_was_lost_is_not_believed_when_it_comes_late() -> None:
    world = World("p")
    world.loses_grants = True
    world.annotate("p", resize="memory=4Gi")
    order = only(world.placement.commands, m.SendGrant)[-1].grant
    assert order.shrink is not None
    world.promises_by_sync = False
    world.lose_checkpoint()
    said = m.GrantAcknowledged(
        "n", order.grant.grant_id, ok=True, reason="", amendment=0, shrunk=order.shrink, number=order.number
    )
    assert not amendments(world.placement.send(said))
    later = msgspec.structs.replace(said, number=world.placement.core.nodes.first_number["n"])
    assert amendments(world.placement.send(later)), "it is a promise of now"


def test_an_agent_that_does_not_resize_gets_no_order() -> None:
    world = World("p")
    world.placement.core.nodes.resizing.clear()
    (event,) = events(world.annotate("p", resize="memory=40Gi"))
    assert "is of a version that resizes no slices" in event.note
    assert world.all_mib("p") == (16384, 16384, 16384)


def test_a_suspended_pod_is_resized_when_it_has_resumed() -> None:
    world = World("p")
    world.annotate("p", suspended='{"action":"pause","plan_id":"plan"}')
    (event,) = events(world.annotate("p", resize="memory=40Gi"))
    assert "the pod is suspended" in event.note


def test_a_pod_whose_memory_is_on_the_host_is_resized_when_it_is_back() -> None:
    """A checkpoint that is under way, or may come, is of the amounts that were booked on the host."""
    world = World("p")
    book = world.placement.core.book
    book.park(book.pods["uid-team-p"].grant_id)
    (event,) = events(world.annotate("p", resize="memory=40Gi"))
    assert "memory is on the host" in event.note
    book.park(book.pods["uid-team-p"].grant_id, parked=False)
    assert amendments(world.wait(10))


def test_an_order_to_use_less_that_was_lost_before_a_renewed_term_is_carried_out() -> None:
    """The sync of the renewed term names what is wanted, and the node waits for the order."""
    world = World("p")
    world.loses_grants = True
    world.annotate("p", resize="memory=8Gi")
    world.placement.send(m.TermRenewed(term=900))
    assert world.node_mib("p") == 16_384
    world.loses_grants = False
    world.placement.tick(RESEND_S)
    assert world.node_mib("p") == 8_192


def test_what_a_resize_waited_for_is_not_told_when_it_is_over() -> None:
    world = World("p")
    world.placement.core.book.set_agent_trouble("n", "its agent has not answered this leader yet")
    world.annotate("p", resize="memory=8Gi")
    assert world.explained("p").phase == "waiting"
    world.loses_grants = True
    world.placement.core.book.set_agent_trouble("n", "")
    world.wait(10)
    assert (world.explained("p").phase, world.explained("p").sentence) == (
        "applying",
        "its node was asked to use less",
    )


@pytest.mark.parametrize(("field", "forged"), [("uuid", "GPU-other"), ("node", "m"), ("memory_mib", 70_000)])
def test_a_promise_for_other_slices_than_the_grants_is_not_believed(field: str, forged: Any) -> None:
    world = World("p")
    given = world.placement.core.book.grants[world.placement.core.book.pods["uid-team-p"].grant_id].given
    part = given.containers["c"]
    gpus = tuple(msgspec.structs.replace(share, **{field: forged}) for share in part.gpus)
    promise = msgspec.structs.replace(
        given, amendment=1, containers={"c": msgspec.structs.replace(part, strategy=part.strategy, gpus=gpus)}
    )
    world.used_mib["p"] = 16_000  # so that the node itself promises nothing
    world.annotate("p", resize="memory=8Gi")
    said = world.placement.send(m.GrantAcknowledged("n", given.grant_id, True, "", amendment=0, shrunk=promise))
    assert not amendments(said + world.wait(10))


def test_a_withdrawal_is_done_only_when_the_node_says_so() -> None:
    world = World("p")
    world.delays = True
    world.annotate("p", resize="memory=4Gi")
    world.annotate("p", resize="memory=16Gi")
    assert world.explained("p").phase == "applying"
    world.late()
    assert world.node_mib("p") == 4096
    world.delays = False
    world.wait(20)
    assert world.all_mib("p") == (16384, 16384, 16384)
    assert world.explained("p").phase == "done"


def test_a_node_that_refuses_again_and_again_is_asked_less_often() -> None:
    world = World("p")
    world.used_mib["p"] = 10_000
    world.annotate("p", resize="memory=4Gi")
    begun = len(only(world.placement.commands, m.SendGrant))
    world.wait(600)
    assert 5 < len(only(world.placement.commands, m.SendGrant)) - begun < 16


def test_a_pod_that_does_not_run_is_said_to_and_not_looked_at_again() -> None:
    world = World("p")
    notes = {names.ANNOTATION_ISOLATION: "firm", names.ANNOTATION_RESIZE: "memory=4Gi"}
    world.placement.facts(build.gpu_pod("q", memory="79Gi", annotations=notes))
    explained = world.explained("q")
    assert (explained.phase, explained.sentence) == (
        "waiting",
        "the pod does not run yet; its slices are resized when it does",
    )
    assert not world.placement.core.resizer._unsettled


def test_an_annotation_is_quoted_in_part_and_refused_when_it_is_long() -> None:
    world = World("p")
    for text, words in (("x" * 1000, "x" * 100 + "…"), ("x" * 1025, "has 1025 characters; write at most 1024")):
        (event,) = events(world.annotate("p", resize=text))
        assert words in event.note
        assert len(event.note) < 400


def test_growths_that_wait_are_tried_again_when_something_has_changed_and_not_before_each_pod() -> None:
    world = World("a", "b", "c")
    world.annotate("a", resize="memory=60Gi")
    tried: list[str] = []
    resizer = world.placement.core.resizer
    before = resizer._grow
    resizer._grow = lambda state, now: (tried.append(state.uid), before(state, now))[1]
    world.placement.facts(*(build.gpu_pod(f"w{i}", memory="70Gi", compute=20) for i in range(20)))
    assert len(tried) <= 2


def test_a_bad_autoscale_is_told_once_for_each_text() -> None:
    world = World("p")
    for text in ("more", "memory=8Gi..4Gi"):
        (event,) = events(world.annotate("p", autoscale=text))
        assert (event.reason, "kerf.dev/autoscale" in event.note) == ("AutoscaleRefused", True)
        assert not events(world.annotate("p", other=text))
    assert not events(world.annotate("p", autoscale="memory=4Gi..8Gi"))


@pytest.mark.parametrize(
    ("field", "forged"), [("uuid", "GPU-other"), ("node", "m"), ("memory_mib", 200_000), ("compute_milli", 1001)]
)
def test_an_annotation_that_cannot_be_an_amendment_changes_nothing(field: str, forged: Any) -> None:
    world = World("p")
    given = decode_grant(world.pods["p"].metadata.annotations[names.ANNOTATION_GRANT])
    part = given.containers["c"]
    gpus = tuple(msgspec.structs.replace(share, **{field: forged}) for share in part.gpus)
    containers = {"c": msgspec.structs.replace(part, strategy=part.strategy, gpus=gpus)}
    world.annotate("p", grant=encode_grant(msgspec.structs.replace(given, amendment=1, containers=containers)))
    assert (world.node_mib("p"), world.free_mib()) == (16384, GPU_MIB - 16384)


def test_slices_grow_up_to_their_requests_unless_the_operator_lets_them() -> None:
    world = World("p", resize_beyond_request=False)
    (event,) = events(world.annotate("p", resize="memory=17Gi"))
    assert "the setting resize_beyond_request is off, and container c requests 16 GiB of GPU memory" in event.note
    world.resize("p", "memory=4Gi")
    world.resize("p", "memory=16Gi")
    assert world.all_mib("p") == (16384, 16384, 16384)
