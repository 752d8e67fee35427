"""One node's agent: which grants it knows, what it has handed over, and what it has given back for good.

Pure: `handle(event, now) -> list[Command]`. Its whole state is the checkpoint. The rules R6 and R7 of the protocol:

1. A released grant is never handed over again, whoever tasks, whatever was lost meanwhile. The tombstone is durable before
   the release is spoken.
2. What is handed over on a GPU never exceeds it.
3. An order under an older term than one that was met is refused, and one that was overtaken within its term changes nothing.
4. Without a grant nothing starts; nor by a grant whose pod has not been seen bound with it.
5. A sync closes the terms before it: a grant of one of them that the sync does not name is void.
"""

from __future__ import annotations

import msgspec

from services.node_agent import gate, releases, start_checks, state, suspensions
from services.node_agent import messages as m
from services.node_agent.devices import changes, gpu_pods
from services.node_agent.devices.cordons import Cordons
from services.node_agent.grant_store import GrantStore
from services.node_agent.releases import Releases
from services.node_agent.state import Checkpoint, Lease, Released
from shared.contracts.node_commands import (
    Accepted,
    LiveSlice,
    NodeCordon,
    NodeCordonAnswer,
    NodeGrant,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
)
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import Grant
from shared.model.suspension import Suspension

EVICT_AGAIN_S = 15.0
"""How often the pods of an unhealthy GPU are asked to go, where they are."""
KEEP_TOMBSTONES = 8192
"""Of releases that were booked. A finished pod's object keeps its grant for as long as it exists, so a later leader may
still ask; of more pods than this on one node the oldest are long gone."""


class Agent:
    def __init__(
        self,
        node: str,
        checkpoint: Checkpoint | None = None,
        *,
        keep_tombstones: int = KEEP_TOMBSTONES,
        evict_unhealthy: bool = False,
    ) -> None:
        self.node = node
        self._evicts = evict_unhealthy
        saved = checkpoint or Checkpoint(node=node)
        self.term = saved.term
        self.inventory = saved.inventory
        self._generation = saved.generation
        self._boot_id = saved.boot_id
        self.store = GrantStore(saved.known, saved.leases)
        self.released = Releases(saved.tombstones, saved.unbooked, keep_tombstones)
        self._closed_term, self._sync_number = saved.closed_term, saved.sync_number
        self._gpus: dict[str, Gpu] = {} if saved.inventory is None else {g.uuid: g for g in saved.inventory.gpus}
        self.ailments = saved.ailments
        self._cordons = Cordons(saved.cordons)
        self._seen: Inventory | None = None
        self._evict_at = 0.0

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            version=state.VERSION,
            node=self.node,
            term=self.term,
            generation=self._generation,
            boot_id=self._boot_id,
            inventory=self.inventory,
            known=self.store.known,
            leases=self.store.leases,
            tombstones=self.released.tombstones,
            closed_term=self._closed_term,
            sync_number=self._sync_number,
            unbooked=self.released.unbooked,
            ailments=self.ailments,
            cordons=self._cordons.saved,
        )

    def handle(self, event: m.Input, now: float) -> list[m.Command]:
        match event:
            case m.GrantReceived():
                return self._grant(event.grant)
            case m.ReleaseReceived():
                return self._release(event.release, now)
            case m.StartRequested():
                return self._start(event)
            case m.ContainerEnded():
                return self._container_ended(event, now)
            case m.SyncReceived():
                return self._sync(event.sync)
            case m.SuspensionDone():
                return self._suspension_done(event)
            case m.ReleasesBooked():
                # Not worth a write of its own: after a crash the release is said once more, which harms nobody.
                self.released.booked(event.grant_ids)
                return []
            case m.InventorySeen():
                return self._inventory(event, now)
            case m.CordonRequested():
                return self._cordon(event.cordon, now)
            case m.Reconnected():
                put: list[m.Command] = [] if self.inventory is None else [m.PutInventory(self.inventory)]
                return put + self._say(*self.released.due_for_repeat(now, at_once=True))
            case m.Tick():
                return self._tick(now)
        raise TypeError(f"the agent's core knows no {type(event).__name__}")

    # --- what is asked of it ----------------------------------------------------------------------------------

    def leases_of(self, grant_id: str) -> list[Lease]:
        return self.store.leases_of(grant_id)

    def largest_container(self, uid: str) -> str:
        """The container with the largest share of this pod's grant; empty where there is no grant."""
        return self.store.largest_container(uid)

    def find_claim(self, claim: str) -> tuple[str, tuple[str, ...]] | None:
        """The pod whose grant has parts for this ResourceClaim, and their names in it. None where none is known."""
        return self.store.find_by_claim(claim)

    def live(self) -> tuple[LiveSlice, ...]:
        return self.store.live(self.node)

    def suspension(self, uid: str) -> Suspension | None:
        """What this pod's slices were told to give up."""
        known = self.store.find_by_pod(uid)
        return None if known is None else known.grant.suspension

    def grants(self) -> tuple[NodeGrant, ...]:
        """Grants that may be handed over."""
        return tuple(k.grant for k in self.store.known if not k.releasing and not k.unbound)

    def is_void(self, grant: Grant) -> bool:
        """Whether this grant will never be handed over: it was released, or is of a closed term and not known."""
        return grant.grant_id in self.released or (
            grant.term < self._closed_term and self.store.get(grant.grant_id) is None
        )

    def occupied(self) -> gate.Occupancy:
        """What is handed over, by GPU."""
        return gate.occupied(self.store.shares(), self.node)

    # --- grants and releases ----------------------------------------------------------------------------------

    def _grant(self, came: NodeGrant) -> list[m.Command]:
        grant_id = came.grant.grant_id
        if came.term < self.term:
            return [self._refused(grant_id, f"term {came.term} is over, this node follows {self.term}")]
        if grant_id in self.released:
            return [self._refused(grant_id, "this grant was given back for good", dead=True)]
        if self.is_void(came.grant):
            why = f"this grant is of term {came.grant.term}, and the sync of term {self._closed_term} did not name it"
            return [self._refused(grant_id, why, dead=True)]
        known = self.store.get(grant_id)
        if known is not None and known.grant.uid != came.uid:
            return [self._refused(grant_id, f"this grant is of pod {known.grant.uid}")]
        if known is not None and (came.term, came.number) < known.order:
            if known.unbound and not came.unbound:
                self.store.confirm(known)
                return [m.Save(), self._granted(grant_id)]
            return [self._granted(grant_id)]
        if (
            known is not None
            and came.term == self.term
            and known.grant.grant == came.grant
            and known.grant.suspension is None is came.suspension
            and known.unbound <= came.unbound
        ):
            return [self._ok(grant_id)]
        self.term = came.term
        order = suspensions.apply_order(self.store, came, self.node, self._gpus)
        if order.task is not None:
            return [m.Save(), m.SuspendSlices(came, (order.task,))]
        return [m.Save(), self._granted(grant_id, order.reason, ok=order.ok)]

    def _granted(self, grant_id: str, reason: str = "", *, ok: bool = True) -> m.Answer:
        suspension = suspensions.applied_to(self.store, grant_id)
        return m.Answer(
            Accepted(ok=ok, reason=reason, term=self.term, node=self.node, grant_id=grant_id, suspension=suspension)
        )

    def _release(self, came: NodeRelease, now: float) -> list[m.Command]:
        grant_id = came.grant_id
        if came.term < self.term:
            return [self._refused(grant_id, f"term {came.term} is over, this node follows {self.term}")]
        advanced, self.term = came.term > self.term, came.term
        if grant_id in self.released:
            # Asked again although it was booked: a new leader that has not heard of it.
            save: list[m.Command] = [m.Save()] if advanced else []
            return [*save, self._ok(grant_id), *self._say(self.released.again(grant_id, came.uid))]
        known = self.store.get(grant_id)
        if known is not None and self.store.runs(grant_id):
            self.store.leave(known)
            return [m.Save(), self._ok(grant_id)]
        reason = "nothing of it runs" if known is not None and not known.unbound else "never handed over here"
        return [m.Save(), self._ok(grant_id), *self._give_back(grant_id, came.uid, reason, now)]

    def _give_back(self, grant_id: str, uid: str, reason: str, now: float) -> list[m.Command]:
        """The caller orders Save before what this returns."""
        known = self.store.forget(grant_id)
        released = (
            Released(grant_id=grant_id, uid=uid, reason=reason)
            if known is None
            else Released(
                grant_id=grant_id, uid=uid, namespace=known.grant.namespace, name=known.grant.name, reason=reason
            )
        )
        self.released.add(released, now)
        return self._say(released)

    def _sync(self, sync: NodeSync) -> list[m.Command]:
        if sync.node != self.node or sync.term < self.term:
            return [
                m.Answer(
                    NodeSyncAnswer(
                        node=self.node, boot_id=self._boot_id, term=self.term, accepted=False, number=sync.number
                    )
                )
            ]
        if (sync.term, sync.number) < (self._closed_term, self._sync_number):
            return []  # a later one of the same leader has been answered
        for named in sync.grants:
            if self.is_void(named.grant):
                self.released.add_tombstone(
                    named.grant.grant_id
                )  # an earlier sync has closed its term, and placement is told so
        self.term = self._closed_term = sync.term
        self._sync_number = sync.number
        ids = {g.grant.grant_id for g in sync.grants}
        for unnamed in [k for k in self.store.known if k.grant_id not in ids and not self.store.runs(k.grant_id)]:
            if unnamed.order < (sync.term, sync.number):
                self.store.forget(unnamed.grant_id)
                self.released.add_tombstone(unnamed.grant_id)
        tasks = []
        for came in sync.grants:
            known = self.store.get(came.grant.grant_id)
            if came.grant.grant_id not in self.released and (known is None or known.grant.uid == came.uid):
                order = suspensions.apply_order(self.store, came, self.node, self._gpus)
                tasks += [] if order.task is None else [order.task]
        return [m.Save(), m.SuspendSlices(sync, tuple(tasks)) if tasks else self._synced(sync)]

    def _synced(self, sync: NodeSync) -> m.Answer:
        ids = [g.grant.grant_id for g in sync.grants]
        dead = tuple(grant_id for grant_id in ids if grant_id in self.released)
        suspension = {
            grant_id: found for grant_id in ids if (found := suspensions.applied_to(self.store, grant_id)) is not None
        }
        return m.Answer(
            NodeSyncAnswer(
                node=self.node,
                boot_id=self._boot_id,
                term=self.term,
                accepted=True,
                number=sync.number,
                live=self.live(),
                tombstones=dead,
                suspension=suspension,
            )
        )

    def _suspension_done(self, event: m.SuspensionDone) -> list[m.Command]:
        failed = suspensions.record_results(self.store, event.results)
        if isinstance(event.request, NodeSync):
            return [m.Save(), self._synced(event.request)]
        reason = failed.get(event.request.grant.grant_id, "")
        return [
            m.Save(),
            self._granted(event.request.grant.grant_id, reason, ok=not reason or event.request.suspension is not None),
        ]

    # --- containers -------------------------------------------------------------------------------------------

    def _start(self, asked: m.StartRequested) -> list[m.Command]:
        known = self.store.find_by_pod(asked.uid)
        if known is None or known.unbound:
            sentence = (
                f"no grant for pod {asked.uid} on this node yet; it was asked for, and the kubelet will try again"
            )
            return [m.FetchGrant(asked.uid), m.RefuseStart(asked.uid, asked.container, "no-grant", sentence)]
        why = start_checks.refusal(asked, known, self.store, self.inventory, self._gpus, self.node)
        if why is not None:
            return [m.RefuseStart(asked.uid, asked.container, *why)]
        share = known.grant.grant.containers[asked.container]
        before = self.store.lease(asked.uid, asked.container)
        # An init container that runs within this share comes without the slot that its container has.
        slot = asked.slot or ("" if before is None else before.slot)
        lease = Lease(
            uid=asked.uid, container=asked.container, grant_id=known.grant_id, boot_id=self._boot_id, slot=slot
        )
        hand_over = m.HandOver(asked.uid, asked.container, known.grant_id, share, known.grant.suspension)
        if before == lease:
            return [hand_over]
        self.store.add_lease(lease)
        return [m.Save(), hand_over, start_checks.enforced(known, lease, share, self.inventory, self.node)]

    def _container_ended(self, ended: m.ContainerEnded, now: float) -> list[m.Command]:
        lease = self.store.end(ended.uid, ended.container)
        if lease is None:
            return []
        return [m.Save(), *self._give_back_if_done(lease.grant_id, "its containers have ended", now)]

    def _give_back_if_done(self, grant_id: str, reason: str, now: float) -> list[m.Command]:
        known = self.store.get(grant_id)
        if known is None or not known.releasing or self.store.runs(grant_id):
            return []
        return self._give_back(grant_id, known.grant.uid, reason, now)

    # --- devices ----------------------------------------------------------------------------------------------

    def _inventory(self, event: m.InventorySeen, now: float) -> list[m.Command]:
        self._seen = event.inventory
        save: list[m.Command] = [m.Save()] if event.ailments != self.ailments else []
        self.ailments = event.ailments
        return self._devices(self._cordons.with_cordons(event.inventory), now) or save

    def _devices(self, seen: Inventory, now: float) -> list[m.Command]:
        old, out = self.inventory, list[m.Command]()
        rebooted = bool(self._boot_id) and self._boot_id != seen.boot_id
        if old is not None and not rebooted and changes.same(old, seen):
            return []
        self._generation = 1 if rebooted else self._generation + 1
        self._boot_id = seen.boot_id
        self.inventory = msgspec.structs.replace(seen, node=self.node, generation=self._generation)
        before, self._gpus = self._gpus, {g.uuid: g for g in seen.gpus}
        if rebooted:
            # Nothing of the last boot runs. Its grants stand, and may be handed over again when the kubelet starts them.
            for grant_id in self.store.end_all_leases():
                out += self._give_back_if_done(grant_id, "the node has rebooted", now)
        out += [m.PutInventory(self.inventory), *changes.told(before, self.inventory)]
        return [m.Save(), *out]

    # --- by people's word, and by policy ----------------------------------------------------------------------

    def _cordon(self, asked: NodeCordon, now: float) -> list[m.Command]:
        refusal = (
            "the node has not been looked at yet"
            if self._seen is None
            else self._cordons.refusal(asked, self.node, self._gpus)
        )
        if self._seen is None or refusal:
            return [m.Answer(NodeCordonAnswer(ok=False, reason=refusal))]
        gpus, before = (asked.gpu,) if asked.gpu else tuple(self._gpus), self._cordons.saved
        self._cordons.take(asked)
        out: list[m.Command] = (
            []
            if self._cordons.saved == before
            else self._devices(self._cordons.with_cordons(self._seen), now) or [m.Save()]
        )
        if asked.undo:
            out.append(m.ClearAilments(gpus))
        return [
            *out,
            m.Answer(
                NodeCordonAnswer(ok=True, gpus=gpus, pods=gpu_pods.find_pods(gpus, self.store.known, self.store.runs))
            ),
        ]

    def _tick(self, now: float) -> list[m.Command]:
        out = self._say(*self.released.due_for_repeat(now))
        for order in suspensions.retry_restores(self.store, self.node, self._gpus):
            if order.task is not None:
                out += [m.Save(), m.SuspendSlices(order.came, (order.task,))]
        if (
            self._evicts
            and now >= self._evict_at
            and (evictions := gpu_pods.evictions(self._gpus, self.store.known, self.store.runs))
        ):
            self._evict_at = now + EVICT_AGAIN_S
            out.append(m.EvictPods(evictions))
        return out

    # --- words ------------------------------------------------------------------------------------------------

    def _say(self, *released: Released) -> list[m.Command]:
        return releases.told(released, self.node, self._boot_id)

    def _ok(self, grant_id: str) -> m.Answer:
        return m.Answer(Accepted(ok=True, term=self.term, node=self.node, grant_id=grant_id))

    def _refused(self, grant_id: str, reason: str, *, dead: bool = False) -> m.Answer:
        return m.Answer(Accepted(ok=False, reason=reason, term=self.term, node=self.node, grant_id=grant_id, dead=dead))
