"""Resizing the slices of a running pod: the orders, and what is known to be done. Pure.

Growing: the device gate counts the larger amounts from the order on, and refuses the order if other slices have the
room. The slices get them when their memory is there; what they have until then is `in_force`.

Shrinking: the slices get the smaller limits, unless their program has more. Then the node promises to use no more than
that (`shrunk`): the promise is on its disk, holds for every later start, and ends only with the next amendment. That
the slices may have less is on its disk before they do (`in_force`): after a crash nobody may want it any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.node_agent import gate, moving, slice_changes
from services.node_agent import messages as m
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore
from services.node_agent.messages import ResizeTask
from services.node_agent.state import KnownGrant
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.model.gpu import Gpu
from shared.model.grant import Grant
from shared.model.resize import exceeds, lower, same_slices

AGAIN_S, LONGEST_S = 5.0, 60.0
"""What a program has more than its amended grant is asked for again after so long, doubled each time, at most this."""


class Resizes:
    """What the slices of all grants are to do, one task of a grant at a time."""

    def __init__(self, node: str, store: GrantStore, gpus: NodeGpus) -> None:
        self._node, self._store, self._gpus = node, store, gpus
        self._going: dict[str, ResizeTask] = {}
        """By grant: what its slices are doing."""
        self._refused: dict[str, tuple[int, float]] = {}
        """By grant that was amended to less without a promise: how often its program had more, and when it is tried
        again."""
        self._shrinking: dict[str, KnownGrant] = {}
        """By grant whose slices are being shrunk: what was known of it before."""

    def fitting(self, received: NodeGrant) -> tuple[NodeGrant, str]:
        """The order, with the grant as it was where the larger amounts exceed the device, and why they do."""
        known = self._store.get(received.grant.grant_id)
        why = refusal(self._store, received, self._node, self._gpus.by_uuid)
        if why and known is not None:
            received = as_it_was(known, received)
        return received, why

    def next(self, grant_id: str, received: NodeGrant | None = None) -> m.ResizeSlices | None:
        """What the slices of a grant have to do now; None if nothing, or if they are being resized."""
        if grant_id in self._going:
            return None
        task = next_task(self._store, grant_id, None if received is None else received.shrink)
        if task is None:
            return None
        self._going[grant_id] = task
        known = self._store.get(grant_id)
        if task.shrinks and known is not None:
            self._shrinking[grant_id] = known
            self._store.put(msgspec.structs.replace(known, in_force=known.in_force or _may_have(task)))
        return m.ResizeSlices(task, received)

    def promise_before_start(self, received: NodeGrant) -> None:
        """Promises for a pod of which nothing runs what it is to use less of. An amendment to that may be on its way by
        an earlier promise, which was lost with the checkpoint."""
        grant_id = received.grant.grant_id
        if grant_id not in self._going and not self._store.is_running(grant_id):
            next_task(self._store, grant_id, received.shrink)

    def start_refusal(self, grant_id: str) -> tuple[str, str] | None:
        """Why no container of a grant may start now, as code and sentence: it would keep what others give up."""
        if grant_id not in self._going or not self._going[grant_id].shrinks:
            return None
        return "resizing", "the pod's slices are being shrunk; the kubelet tries again"

    def due(self, now: float) -> list[m.Command]:
        """Growths that could not be done yet, or that an earlier agent has left; and what was not taken back, less and
        less often."""
        out: list[m.Command] = []
        open_ = [known.grant_id for known in self._store.known if known.in_force is not None]
        self._refused = {grant_id: self._refused[grant_id] for grant_id in open_ if grant_id in self._refused}
        for grant_id in open_:
            times, again_at = self._refused.get(grant_id, (0, now))
            task = None if again_at > now else self.next(grant_id)
            if task is not None:
                out.append(task)
                if times:
                    self._refused[grant_id] = times, now + min(LONGEST_S, AGAIN_S * 2 ** min(times, 8))
        return out

    def done(self, event: m.ResizeDone) -> list[m.Command]:
        """Records what slices have done. Returns the events that say so."""
        self._going.pop(event.task.grant_id, None)
        before, known = self._shrinking.pop(event.task.grant_id, None), self._store.get(event.task.grant_id)
        if before is not None and known is not None:
            amended = known.grant.grant.amendment > before.grant.grant.amendment
            in_force = before.in_force or before.effective if amended else before.in_force
            self._store.put(msgspec.structs.replace(known, in_force=in_force))
        record_result(self._store, event.task, event.reason, is_partial=event.is_partial)
        times, again_at = self._refused.pop(event.task.grant_id, (0, 0.0))
        if event.task.shrinks and event.task.promise is None and event.reason:
            self._refused[event.task.grant_id] = times + 1, again_at
        known = self._store.get(event.task.grant_id)
        if known is None or event.reason:
            return []
        return slice_changes.events_of(known, self._store, self._gpus.inventory, self._node)

    def told(self, answer: Accepted, not_resized: str = "") -> m.Answer:
        """The answer, with what is known of the amounts."""
        known = self._store.get(answer.grant_id)
        if answer.grant_id in self._going:
            not_resized = not_resized or "its slices are being resized by an earlier order"
        elif known is not None and not known.has_all:
            not_resized = not_resized or "its slices do not have the amounts of the grant yet"
        return m.Answer(
            msgspec.structs.replace(
                answer,
                amendment=amendment_of(self._store, answer.grant_id),
                shrunk=promise_of(self._store, answer.grant_id),
                not_resized=not_resized,
            )
        )


def as_it_was(known: KnownGrant, received: NodeGrant) -> NodeGrant:
    """An order whose grant is refused. A pod that cannot come to other GPUs stays on the host: it was not told to
    resume on its own ones."""
    suspension = known.grant.suspension if moving.is_move(known, received) else received.suspension
    return msgspec.structs.replace(received, grant=known.grant.grant, suspension=suspension)


def refusal(store: GrantStore, received: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> str:
    """Why the slices of this grant cannot have its amounts; empty if they can, or if these are none that are new."""
    known = store.get(received.grant.grant_id)
    if known is None or received.grant.amendment <= known.grant.grant.amendment:
        return ""
    if moving.is_move(known, received) and (unmoved := moving.refusal(known, received, node, gpus)):
        return unmoved
    mine = store.leases_of(known.grant_id)
    shares = store.shares(without=tuple((lease.uid, lease.container) for lease in mine))
    for lease in mine:
        room, part = gate.occupied(shares, node), received.grant.containers[lease.container]
        for share in part.gpus:
            why = gate.capacity_refusal(share, gpus[share.uuid], room) if share.uuid in gpus else None
            if share.node == node and why is not None:
                return why[1]
        shares.append(part)
    return ""


def concerns(known: KnownGrant, received: NodeGrant) -> bool:
    """Whether the order is about amounts, or something is still to be done about them."""
    return (
        received.shrink is not None
        or known.grant.shrink is not None
        or known.in_force is not None
        or received.grant.amendment != known.grant.grant.amendment
    )


def next_task(store: GrantStore, grant_id: str, shrink: Grant | None = None) -> ResizeTask | None:
    """What the slices of a grant have to do next; None where that is nothing. What needs no slice is recorded."""
    known = store.get(grant_id)
    if known is None or known.releasing or known.unbound or known.grant.suspension is not None:
        return None
    if moving.is_under_way(known):
        return None  # its slices change when its memory is there
    leases = store.leases_of(grant_id)
    promise = None
    if shrink is not None and _is_next(shrink, known) and exceeds(known.effective, shrink):
        promise = msgspec.structs.replace(shrink, containers=lower(known.effective, shrink))
    if not leases:
        if promise is not None or known.in_force is not None:
            store.put(msgspec.structs.replace(known, shrunk=promise or known.shrunk, in_force=None))
        return None
    has, wanted = known.in_force or known.effective, promise or known.effective
    if promise is None and known.in_force is None:
        return None
    # What they have too much is taken back first, where their program has not more. Growing is a task of its own.
    less = lower(has, wanted)
    shrinks = promise is not None or less != has.containers
    after = msgspec.structs.replace(wanted, containers=less) if shrinks else wanted
    containers = tuple(lease.container for lease in leases)
    return ResizeTask(grant_id, known.grant.uid, containers, has, after, shrinks=shrinks, promise=promise)


def record_result(store: GrantStore, task: ResizeTask, reason: str, *, is_partial: bool = False) -> None:
    """Records what the slices have done."""
    known = store.get(task.grant_id)
    if known is None or (reason and not is_partial):
        return  # they are as they were
    if task.promise is not None and not reason and _is_wanted(store, task, task.promise, known):
        grows = task.after.containers != task.promise.containers
        store.put(msgspec.structs.replace(known, shrunk=task.promise, in_force=_may_have(task) if grows else None))
    elif reason and task.promise is None:
        store.put(msgspec.structs.replace(known, in_force=known.in_force or task.before))
    elif task.shrinks:
        # Half done; or withdrawn meanwhile, and nobody would hear of a promise: the next task restores the limits.
        store.put(msgspec.structs.replace(known, in_force=_may_have(task)))
    else:
        # A newer order may have come meanwhile: then they have what this one said, and the next task follows.
        done = known.effective.containers == task.after.containers
        store.put(msgspec.structs.replace(known, in_force=None if done else task.after))


def _may_have(task: ResizeTask) -> Grant:
    """What is in force of a shrink that is not over, or that nobody wants any more: restored by the next task."""
    return msgspec.structs.replace(task.after, amendment=task.before.amendment)


def amendment_of(store: GrantStore, grant_id: str) -> int:
    """The newest amendment of which the slices have the amounts."""
    known = store.get(grant_id)
    if known is None:
        return 0
    given = known.grant.grant
    if known.in_force is None or known.in_force.containers == given.containers:
        return given.amendment
    return max(0, min(known.in_force.amendment, given.amendment - 1))


def differs(known: Grant, named: Grant) -> bool:
    """Whether a grant that this node knows is another amendment than the one that a leader names, and no older one."""
    if known.amendment == named.amendment:
        return known.containers != named.containers
    return known.amendment > named.amendment


def promise_of(store: GrantStore, grant_id: str) -> Grant | None:
    known = store.get(grant_id)
    return None if known is None else known.shrunk


def _is_next(shrink: Grant, known: KnownGrant) -> bool:
    given = known.grant.grant
    return shrink.amendment == given.amendment + 1 and same_slices(shrink, given) and not exceeds(shrink, given)


def _is_wanted(store: GrantStore, task: ResizeTask, promise: Grant, known: KnownGrant) -> bool:
    """Whether a shrink that was carried out is what the newest order says, for all containers that run."""
    order = known.grant.shrink
    return (
        order is not None
        and _is_next(order, known)
        and lower(known.effective, order) == promise.containers
        and {lease.container for lease in store.leases_of(task.grant_id)} <= set(task.containers)
    )
