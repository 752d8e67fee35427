"""One node's agent: which grants it knows, what it has handed over, and what it has given back for good.

Pure: `handle(event, now) -> list[Command]`. Its whole state is the checkpoint. The rules R6 and R7 of the protocol:

1. A released grant is never handed over again, whoever asks, whatever was lost meanwhile. The tombstone is durable before
   the release is spoken.
2. What is handed over on a GPU never exceeds it.
3. An order under an older term than one that was met is refused.
4. Without a grant nothing starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.node_agent import gate, state
from services.node_agent import messages as m
from services.node_agent.state import Checkpoint, Known, Lease, Released
from shared.contracts.commands import Accepted, LiveSlice, NodeGrant, NodeRelease, NodeSync, NodeSyncAnswer
from shared.contracts.events import GpuStateChanged, NodeInventoried, SliceEnforced, SliceReleased
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant

REPEAT_S = 5.0
"""How often a release is said again until placement has booked it."""
KEEP_TOMBSTONES = 8192
"""Of releases that were booked. A finished pod's object keeps its grant for as long as it exists, so a later leader may
still ask; of more pods than this on one node the oldest are long gone."""


class Agent:
    def __init__(self, node: str, checkpoint: Checkpoint | None = None, *, keep_tombstones: int = KEEP_TOMBSTONES) -> None:
        self.node = node
        self._keep = keep_tombstones
        saved = checkpoint or Checkpoint(node=node)
        self.term = saved.term
        self.inventory = saved.inventory
        self._generation = saved.generation
        self._boot_id = saved.boot_id
        self._known = {k.grant_id: k for k in saved.known}
        self._by_uid = {k.grant.uid: k.grant_id for k in saved.known}
        self._leases = {(lease.uid, lease.container): lease for lease in saved.leases}
        self._tombstones = dict.fromkeys(saved.tombstones)
        self._unbooked = {r.grant_id: r for r in saved.unbooked}
        self._gpus: dict[str, Gpu] = {} if saved.inventory is None else {g.uuid: g for g in saved.inventory.gpus}
        self._repeat_at = 0.0

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            version=state.VERSION, node=self.node, term=self.term, generation=self._generation, boot_id=self._boot_id,
            inventory=self.inventory, known=tuple(self._known.values()), leases=tuple(self._leases.values()),
            tombstones=tuple(self._tombstones), unbooked=tuple(self._unbooked.values()),
        )  # fmt: skip

    def handle(self, event: m.Input, now: float) -> list[m.Command]:
        match event:
            case m.GrantCame():
                return self._grant(event.grant)
            case m.ReleaseCame():
                return self._release(event.release, now)
            case m.StartAsked():
                return self._start(event)
            case m.ContainerEnded():
                return self._container_ended(event, now)
            case m.SyncCame():
                return self._sync(event.sync)
            case m.ReleasesBooked():
                return self._booked(event.grant_ids)
            case m.InventorySeen():
                return self._inventory(event.inventory, now)
            case m.Reconnected():
                self._repeat_at = now + REPEAT_S
                put: list[m.Command] = [] if self.inventory is None else [m.PutInventory(self.inventory)]
                return put + self._say(self._unbooked.values())
            case m.Tick():
                if now < self._repeat_at or not self._unbooked:
                    return []
                self._repeat_at = now + REPEAT_S
                return self._say(self._unbooked.values())
        raise TypeError(f"the agent's core knows no {type(event).__name__}")

    # --- what is asked of it ----------------------------------------------------------------------------------

    def leases_of(self, grant_id: str) -> list[Lease]:
        known = self._known.get(grant_id)
        return [] if known is None else [lease for name in known.grant.grant.containers if (lease := self._lease(known, name)) is not None]

    def largest(self, uid: str) -> str:
        """The container with the largest share of this pod's grant; empty where there is no grant."""
        known = self._known.get(self._by_uid.get(uid, ""))
        containers = {} if known is None else known.grant.grant.containers
        return max(containers, key=lambda name: _size(containers[name]), default="")

    def live(self) -> tuple[LiveSlice, ...]:
        return tuple(self._live_slice(lease) for lease in self._leases.values())

    def grants(self) -> tuple[NodeGrant, ...]:
        """Grants that may be handed over."""
        return tuple(k.grant for k in self._known.values() if not k.leaving)

    def occupied(self) -> gate.Room:
        """What is handed over, by GPU."""
        return self._room(None)

    # --- grants and releases ----------------------------------------------------------------------------------

    def _grant(self, came: NodeGrant) -> list[m.Command]:
        grant_id = came.grant.grant_id
        if came.term < self.term:
            return [self._refused(grant_id, f"term {came.term} is over, this node follows {self.term}")]
        if grant_id in self._tombstones:
            return [self._refused(grant_id, "this grant was given back for good")]
        known = self._known.get(grant_id)
        if known is not None and came.term == self.term and known.grant.grant == came.grant:
            return [self._ok(grant_id)]
        self.term = came.term
        self._remember(came, leaving=known is not None and known.leaving)
        return [m.Save(), self._ok(grant_id)]

    def _release(self, came: NodeRelease, now: float) -> list[m.Command]:
        grant_id = came.grant_id
        if came.term < self.term:
            return [self._refused(grant_id, f"term {came.term} is over, this node follows {self.term}")]
        advanced, self.term = came.term > self.term, came.term
        if grant_id in self._tombstones:
            # Asked again although it was booked: a new leader that has not heard of it.
            again = self._unbooked.get(grant_id) or Released(grant_id=grant_id, uid=came.uid, reason="given back before")
            save: list[m.Command] = [m.Save()] if advanced else []
            return [*save, self._ok(grant_id), *self._say([again])]
        known = self._known.get(grant_id)
        if known is not None and self.leases_of(grant_id):
            self._known[grant_id] = Known(grant=known.grant, leaving=True)
            return [m.Save(), self._ok(grant_id)]
        reason = "nothing of it runs" if known is not None else "never handed over here"
        return [m.Save(), self._ok(grant_id), *self._give_back(grant_id, came.uid, reason, now)]

    def _give_back(self, grant_id: str, uid: str, reason: str, now: float) -> list[m.Command]:
        """The caller orders Save before what this returns."""
        known = self._forget(grant_id)
        released = Released(grant_id=grant_id, uid=uid, reason=reason) if known is None else Released(
            grant_id=grant_id, uid=uid, namespace=known.grant.namespace, name=known.grant.name, reason=reason
        )  # fmt: skip
        if not self._unbooked:
            self._repeat_at = now + REPEAT_S
        self._unbooked[grant_id] = released
        self._bury(grant_id)
        return self._say([released])

    def _booked(self, grant_ids: tuple[str, ...]) -> list[m.Command]:
        # Not worth a write of its own: after a crash the release is said once more, which harms nobody.
        for grant_id in grant_ids:
            self._unbooked.pop(grant_id, None)
        return []

    def _sync(self, sync: NodeSync) -> list[m.Command]:
        if sync.node != self.node or sync.term < self.term:
            return [m.Answer(NodeSyncAnswer(node=self.node, boot_id=self._boot_id, term=self.term, accepted=False))]
        self.term = sync.term
        dead = tuple(g.grant.grant_id for g in sync.grants if g.grant.grant_id in self._tombstones)
        named = {g.grant.grant_id for g in sync.grants}
        for grant_id in [g for g in self._known if g not in named and not self.leases_of(g)]:
            self._forget(grant_id)
            self._bury(grant_id)
        for came in sync.grants:
            if came.grant.grant_id not in self._tombstones:
                known = self._known.get(came.grant.grant_id)
                self._remember(came, leaving=known is not None and known.leaving)
        answer = NodeSyncAnswer(node=self.node, boot_id=self._boot_id, term=self.term, accepted=True, live=self.live(), tombstones=dead)
        return [m.Save(), m.Answer(answer)]

    # --- containers -------------------------------------------------------------------------------------------

    def _start(self, asked: m.StartAsked) -> list[m.Command]:
        known = self._known.get(self._by_uid.get(asked.uid, ""))
        if known is None:
            sentence = f"no grant for pod {asked.uid} on this node yet; it was asked for, and the kubelet will try again"
            return [m.AskGrant(asked.uid), m.RefuseStart(asked.uid, asked.container, "no-grant", sentence)]
        if known.leaving:
            return [m.RefuseStart(asked.uid, asked.container, "grant-leaving", "the pod's grant is being given back; nothing new of it may start")]
        granted = (known.grant.namespace, known.grant.name)
        if asked.pod is not None and asked.pod != granted:
            sentence = f"the grant of UID {asked.uid} is of pod {'/'.join(granted)}, and the kubelet starts {'/'.join(asked.pod)}"
            return [m.RefuseStart(asked.uid, asked.container, "another-pod", sentence)]
        share = known.share(asked.container)
        if share is None:
            return [m.RefuseStart(asked.uid, asked.container, "no-share", f"the pod's grant has no part for container {asked.container!r}")]
        room = self._room((asked.uid, asked.container))
        taken = gate.cut(self._shares((asked.uid, asked.container)), self._gpus)
        for gpu in share.gpus:
            why = gate.refusal(gpu, self._gpus.get(gpu.uuid) if gpu.node == self.node else None, room, taken)
            if why is not None:
                return [m.RefuseStart(asked.uid, asked.container, *why)]
        lease = Lease(uid=asked.uid, container=asked.container, grant_id=known.grant_id, boot_id=self._boot_id, slot=asked.slot)
        hand_over = m.HandOver(asked.uid, asked.container, known.grant_id, share)
        if self._leases.get((asked.uid, asked.container)) == lease:
            return [hand_over]
        self._leases[asked.uid, asked.container] = lease
        return [m.Save(), hand_over, self._enforced(known, lease, share)]

    def _container_ended(self, ended: m.ContainerEnded, now: float) -> list[m.Command]:
        lease = self._leases.pop((ended.uid, ended.container), None)
        if lease is None:
            return []
        return [m.Save(), *self._give_back_if_done(lease.grant_id, "its containers have ended", now)]

    def _give_back_if_done(self, grant_id: str, reason: str, now: float) -> list[m.Command]:
        known = self._known.get(grant_id)
        if known is None or not known.leaving or self.leases_of(grant_id):
            return []
        return self._give_back(grant_id, known.grant.uid, reason, now)

    def _enforced(self, known: Known, lease: Lease, share: ContainerGrant) -> m.Publish:
        gpus = {g.uuid: (g.memory_mib, g.compute_milli) for g in share.gpus}
        first = self._gpus.get(share.gpus[0].uuid) if share.gpus else None
        came = known.grant
        # Advisory whatever was granted: no limit is enforced on the device yet, and nothing else may be promised.
        event = SliceEnforced(
            node=self.node, uid=came.uid, namespace=came.namespace, name=came.name, container=lease.container, grant_id=known.grant_id,
            strategy="advisory", promise="soft", gpus=gpus, model="" if first is None else first.model, traceparent=came.grant.traceparent,
        )  # fmt: skip
        identity = f"enforced-{known.grant_id}-{lease.container}-{self._boot_id}"
        return m.Publish(event, identity, came.namespace, came.grant.traceparent)

    # --- devices ----------------------------------------------------------------------------------------------

    def _inventory(self, seen: Inventory, now: float) -> list[m.Command]:
        old, out = self.inventory, list[m.Command]()
        rebooted = bool(self._boot_id) and self._boot_id != seen.boot_id
        if old is not None and not rebooted and _same(old, seen):
            return []
        self._generation = 1 if rebooted else self._generation + 1
        self._boot_id = seen.boot_id
        self.inventory = Inventory(**{f: getattr(seen, f) for f in seen.__struct_fields__} | {"node": self.node, "generation": self._generation})
        before, self._gpus = self._gpus, {g.uuid: g for g in seen.gpus}
        if rebooted:
            # Nothing of the last boot runs. Its grants stand, and may be handed over again when the kubelet starts them.
            ended = {lease.grant_id for lease in self._leases.values()}
            self._leases.clear()
            for grant_id in ended:
                out += self._give_back_if_done(grant_id, "the node has rebooted", now)
        models = tuple(sorted({g.model for g in seen.gpus}))
        unhealthy = sum(g.state != "healthy" for g in seen.gpus)
        event = NodeInventoried(
            node=self.node, gpus=len(seen.gpus), memory_mib=sum(g.memory_mib for g in seen.gpus), models=models, unhealthy=unhealthy,
            generation=self._generation,
        )  # fmt: skip
        identity = f"{self.node}-{seen.boot_id}-{self._generation}"
        out += [m.PutInventory(self.inventory), m.Publish(event, f"inventoried-{identity}")]
        for uuid, now_state, reason in _state_changes(before, self._gpus):
            changed = GpuStateChanged(node=self.node, uuid=uuid, state=now_state, reason=reason)
            out.append(m.Publish(changed, f"gpu-{uuid}-{identity}"))
        return [m.Save(), *out]

    # --- bookkeeping ------------------------------------------------------------------------------------------

    def _remember(self, came: NodeGrant, *, leaving: bool) -> None:
        self._known[came.grant.grant_id] = Known(grant=came, leaving=leaving)
        self._by_uid[came.uid] = came.grant.grant_id

    def _forget(self, grant_id: str) -> Known | None:
        known = self._known.pop(grant_id, None)
        if known is not None and self._by_uid.get(known.grant.uid) == grant_id:
            del self._by_uid[known.grant.uid]
        return known

    def _bury(self, grant_id: str) -> None:
        self._tombstones[grant_id] = None
        if len(self._tombstones) > self._keep:
            oldest = next((g for g in self._tombstones if g not in self._unbooked), None)
            if oldest is not None:
                del self._tombstones[oldest]

    def _lease(self, known: Known, container: str) -> Lease | None:
        lease = self._leases.get((known.grant.uid, container))
        return lease if lease is not None and lease.grant_id == known.grant_id else None

    def _room(self, without: tuple[str, str] | None) -> gate.Room:
        return gate.occupied(self._shares(without), self.node)

    def _shares(self, without: tuple[str, str] | None) -> list[ContainerGrant]:
        return [self._share(lease) for key, lease in self._leases.items() if key != without]

    def _share(self, lease: Lease) -> ContainerGrant:
        # A lease keeps its grant known until it ends, so both look-ups always find something.
        share = self._known[lease.grant_id].share(lease.container)
        assert share is not None  # noqa: S101 - the invariant above
        return share

    def _live_slice(self, lease: Lease) -> LiveSlice:
        came, share = self._known[lease.grant_id].grant, self._share(lease)
        gpus = {g.uuid: (g.memory_mib, g.compute_milli) for g in share.gpus if g.node == self.node}
        return LiveSlice(
            uid=lease.uid, namespace=came.namespace, name=came.name, container=lease.container, grant_id=lease.grant_id,
            strategy=share.strategy, gpus=gpus,
        )  # fmt: skip

    def _say(self, released: Iterable[Released]) -> list[m.Command]:
        return [
            m.Publish(
                SliceReleased(node=self.node, uid=r.uid, namespace=r.namespace, name=r.name, grant_id=r.grant_id, boot_id=self._boot_id, reason=r.reason),
                f"released-{r.grant_id}",
                r.namespace,
            )
            for r in released
        ]

    def _ok(self, grant_id: str) -> m.Answer:
        return m.Answer(Accepted(ok=True, term=self.term, node=self.node, grant_id=grant_id))

    def _refused(self, grant_id: str, reason: str) -> m.Answer:
        return m.Answer(Accepted(ok=False, reason=reason, term=self.term, node=self.node, grant_id=grant_id))


def _same(a: Inventory, b: Inventory) -> bool:
    return all(getattr(a, field) == getattr(b, field) for field in a.__struct_fields__ if field not in ("generation", "node"))


def _size(share: ContainerGrant) -> tuple[int, int, int]:
    return len(share.gpus), sum(g.memory_mib for g in share.gpus), sum(g.compute_milli for g in share.gpus)


def _state_changes(before: dict[str, Gpu], after: dict[str, Gpu]) -> list[tuple[str, str, str]]:
    """GPUs whose state changed, or that came or went while others were known: uuid, state, reason."""
    gone = [(uuid, "gone", "the node does not report it any more") for uuid in before if uuid not in after]
    came = [(g.uuid, g.state, g.reason) for g in after.values() if (old := before.get(g.uuid)) is not None and old.state != g.state]
    return gone + came
