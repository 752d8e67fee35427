"""The core of one node's agent: the grants that it knows, has handed over, and has released for good.

Pure: `handle(event, now) -> list[Command]`. Its whole state is the checkpoint. It implements rules R6 and R7 of the
protocol (`docs/protocol.md`):

1. A released grant is never handed over again, whichever leader asks and whatever was lost. Its tombstone is on disk
   before the release is published.
2. The slices that are handed over on a GPU never exceed the GPU.
3. An order of an older term than the newest one seen is refused. Within a term, an order that a newer one has overtaken
   changes nothing.
4. No container starts without a grant, or by a grant whose pod has not been seen bound with it.
5. A sync closes the earlier terms: a grant of a closed term that the sync does not name is void.
"""

from __future__ import annotations

from services.node_agent import gate, rehearsals, releases, resizes, slice_changes, start_checks, state, suspensions
from services.node_agent import messages as m
from services.node_agent.gone_gpus import GoneGpus
from services.node_agent.gpu_state.evictions import Evictions
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore
from services.node_agent.releases import Releases
from services.node_agent.resizes import Resizes
from services.node_agent.servers import Servers
from services.node_agent.state import Checkpoint, Lease, Released, Terms
from services.node_agent.syncs import Syncs
from shared.contracts.node_commands import (
    Accepted,
    LiveSlice,
    NodeGrant,
    NodeRelease,
    NodeSync,
)
from shared.model.causes import Inputs
from shared.model.suspension import goes_to_host

SERVED_AFTER = (
    m.GrantReceived,
    m.ReleaseReceived,
    m.SyncReceived,
    m.InventorySeen,
    m.ServerStarted,
    m.ServerFound,
    m.ServerEnded,
    m.Tick,
)
"""The inputs after which servers for other nodes may have to be started or ended."""
KEEP_TOMBSTONES = 8192
"""How many tombstones of acknowledged releases are kept. A finished pod's object keeps its grant for as long as it
exists, so a later leader may still ask about it. More pods than this on one node means that the oldest are long
gone."""


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
        saved = checkpoint or Checkpoint(node=node)
        self.terms = Terms(newest=saved.term, closed=saved.closed_term, sync_number=saved.sync_number)
        self.store = GrantStore(suspensions.interrupted(saved.known), saved.leases)
        self.released = Releases(saved.tombstones, saved.unbooked, keep_tombstones)
        self.gpus = NodeGpus(node, saved, self.store, self._end_boot)
        self.resizes = Resizes(node, self.store, self.gpus)
        self.syncs = Syncs(
            node, self.terms, store=self.store, released=self.released, gpus=self.gpus, resizing=self.resizes
        )
        self.servers = Servers(node, self.store, self.gpus, self._finish_release)
        self._evictions = Evictions(self.store, self.gpus, enabled=evict_unhealthy)
        self._gone_gpus = GoneGpus(node, self.store, self.gpus)
        self.inputs = Inputs()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            version=state.VERSION,
            node=self.node,
            checkpoint_id=self.gpus.checkpoint_id,
            term=self.terms.newest,
            generation=self.gpus.generation,
            boot_id=self.gpus.boot_id,
            inventory=self.gpus.kept,
            known=self.store.known,
            leases=self.store.leases,
            tombstones=self.released.tombstones,
            closed_term=self.terms.closed,
            sync_number=self.terms.sync_number,
            unbooked=self.released.unbooked,
            ailments=self.gpus.ailments,
            cordons=self.gpus.cordons,
            gpu_histories=self.gpus.histories,
        )

    def handle(self, event: m.Input, now: float) -> list[m.Command]:
        self.inputs.begin()
        out = self._handle(event, now)
        self.store.under_way.update(t.grant_id for o in out if isinstance(o, m.SuspendSlices) for t in o.tasks)
        if isinstance(event, SERVED_AFTER):
            out += self.servers.due(now)
        return self.inputs.mark(out)

    def _handle(self, event: m.Input, now: float) -> list[m.Command]:  # noqa: PLR0912 one branch an input
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
                return self.syncs.apply(event.sync)
            case m.ServerStarted() | m.ServerFound() | m.ServerEnded() | m.ServerStillRuns():
                return self.servers.handle(event, now)
            case m.SuspensionDone():
                return self._suspension_done(event)
            case m.ResizeDone():
                return self._resize_done(event)
            case m.HoldReceived():
                return rehearsals.hold(self.store, event.hold, self.node, self.terms.newest)
            case m.Rehearsed():
                return rehearsals.record(self.store, event, self.node)
            case m.ReleasesBooked():
                # No write for this alone: after a crash the release is published once more, which is harmless.
                self.released.acknowledge(event.grant_ids)
                return []
            case m.InventorySeen():
                begins, out = not self.gpus.is_read, self.gpus.update(event, now)
                return out + slice_changes.at_start(self.store, self.gpus.inventory, self.node) if begins else out
            case m.IdleSeen():
                return self.gpus.idle_seen(event)
            case m.CordonRequested():
                return self.gpus.cordon(event.cordon, now)
            case m.Reconnected():
                put: list[m.Command] = [] if self.gpus.inventory is None else [m.PutInventory(self.gpus.inventory)]
                return put + self._release_events(*self.released.due_for_repeat(now, at_once=True))
            case m.Tick():
                return self._tick(now)
        raise TypeError(f"the agent's core has no handler for {type(event).__name__}")

    # --- queries ----------------------------------------------------------------------------------------------

    def live(self) -> tuple[LiveSlice, ...]:
        """The slices on this node's GPUs."""
        return self.store.live(self.node)

    def containers(self) -> tuple[LiveSlice, ...]:
        """The slices of containers that this node's kubelet runs."""
        return self.store.containers(self.node)

    def occupied(self) -> gate.Occupancy:
        """Memory and compute that are handed over, by GPU."""
        return gate.occupied(self.store.shares(), self.node)

    # --- grants and releases ----------------------------------------------------------------------------------

    def _grant(self, received: NodeGrant) -> list[m.Command]:
        grant_id = received.grant.grant_id
        if not self.terms.closed:
            # Without a checkpoint it knows neither the newest term nor what it had promised: a sync tells both. This
            # may be an order of a leader before; without an answer it is repeated.
            return []
        if received.term < self.terms.newest:
            return [self._outdated(grant_id, received.term)]
        if grant_id in self.released:
            return [self._refused(grant_id, "this grant was released for good", dead=True)]
        if self.syncs.is_void(received.grant):
            why = f"this grant is of term {received.grant.term}, and the sync of term {self.terms.closed} lacks it"
            return [self._refused(grant_id, why, dead=True)]
        known = self.store.get(grant_id)
        if known is not None and known.grant.uid != received.uid:
            return [self._refused(grant_id, f"this grant belongs to pod {known.grant.uid}")]
        if known is not None and (received.term, received.number) < known.order:
            if known.unbound and not received.unbound:
                self.store.confirm_bound(known)
                return [m.Save(), self._granted(grant_id)]
            return [self._granted(grant_id)]
        if (
            known is not None
            and received.term == self.terms.newest
            and (known.grant.grant, known.grant.remote, known.grant.turns)
            == (received.grant, received.remote, received.turns)
            and (known.grant.suspension, received.suspension, known.on_host) == (None, None, False)
            and known.unbound <= received.unbound
            and not resizes.concerns(known, received)
        ):
            self.store.note_order(known, received.number)
            return [self._granted(grant_id)]
        self.terms.newest = received.term
        asked, (received, too_large) = received, self.resizes.fitting(received)
        if received.suspension != asked.suspension:  # its memory cannot come to those GPUs
            self.store.remember(received)
            return [m.Save(), self._granted(grant_id, too_large, ok=False, not_resized=too_large)]
        order = suspensions.apply_order(self.store, received, self.node, self.gpus.by_uuid)
        if order.task is not None:
            return [m.Save(), m.SuspendSlices(received, (order.task,))]
        if (resize := self.resizes.next(grant_id, received)) is not None:
            return [m.Save(), resize]
        return [m.Save(), self._granted(grant_id, order.reason, ok=order.ok, not_resized=too_large)]

    def _granted(self, grant_id: str, reason: str = "", *, ok: bool = True, not_resized: str = "") -> m.Answer:
        known, suspension = self.store.get(grant_id), suspensions.applied_to(self.store, grant_id)
        said = Accepted(
            ok=ok,
            reason=reason,
            term=self.terms.newest,
            node=self.node,
            grant_id=grant_id,
            suspension=suspension,
            number=0 if known is None else known.grant.number,
            whole=known is not None and not goes_to_host(known.grant.suspension) and not known.on_host,
            cannot_checkpoint=rehearsals.cannot_checkpoint(self.store, grant_id),
            cannot_move=rehearsals.cannot_move(self.store, grant_id),
        )
        return self.resizes.told(said, not_resized)

    def _resize_done(self, event: m.ResizeDone) -> list[m.Command]:
        told: list[m.Command] = [m.Save(), *self.resizes.done(event)]
        return told if event.request is None else [*told, self._granted(event.task.grant_id, not_resized=event.reason)]

    def _release(self, received: NodeRelease, now: float) -> list[m.Command]:
        grant_id = received.grant_id
        if not self.terms.closed:
            return []  # as for a grant
        if received.term < self.terms.newest:
            return [self._outdated(grant_id, received.term)]
        advanced, self.terms.newest = received.term > self.terms.newest, received.term
        if grant_id in self.released:
            # The release was acknowledged before: a new leader asks that has not heard of it.
            save: list[m.Command] = [m.Save()] if advanced else []
            return [
                *save,
                self._accepted(grant_id),
                *self._release_events(self.released.repeat(grant_id, received.uid)),
            ]
        known = self.store.get(grant_id)
        if known is not None and self.store.is_running(grant_id):
            self.store.mark_releasing(known)
            return [m.Save(), self._accepted(grant_id)]
        reason = "none of its containers runs" if known is not None and not known.unbound else "never handed over here"
        return [m.Save(), self._accepted(grant_id), *self._finish_release(grant_id, received.uid, reason, now)]

    def _finish_release(self, grant_id: str, uid: str, reason: str, now: float) -> list[m.Command]:
        """Marks a grant as released, and returns the events that publish it. The caller puts Save before them."""
        known = self.store.forget(grant_id)
        released = (
            Released(grant_id=grant_id, uid=uid, reason=reason)
            if known is None
            else Released(
                grant_id=grant_id, uid=uid, namespace=known.grant.namespace, name=known.grant.name, reason=reason
            )
        )
        self.released.add(released, now)
        return self._release_events(released)

    def _suspension_done(self, event: m.SuspensionDone) -> list[m.Command]:
        failed = suspensions.record_results(self.store, event.results)
        changed = slice_changes.after_suspensions(event.results, failed, self.store, self.gpus.inventory, self.node)
        if isinstance(event.request, NodeSync):
            return [m.Save(), *changed, self.syncs.answer(event.request)]
        grant_id, suspension = event.request.grant.grant_id, event.request.suspension
        reason = failed.get(grant_id, "")
        return [m.Save(), *changed, self._granted(grant_id, reason, ok=not reason or suspension is not None)]

    # --- containers -------------------------------------------------------------------------------------------

    def _start(self, asked: m.StartRequested) -> list[m.Command]:
        known = self.store.find_startable(asked.uid)
        if known is None:
            sentence = (
                f"this node has no grant for pod {asked.uid} yet; the agent asks placement for it, and the "
                "kubelet tries again"
            )
            return [m.FetchGrant(asked.uid), m.RefuseStart(asked.uid, asked.container, "no-grant", sentence)]
        why = start_checks.refusal(asked, known, self.store, self.gpus.inventory, self.gpus.by_uuid, self.node)
        why = why or self.resizes.start_refusal(known.grant_id)
        if why is not None:
            return [m.RefuseStart(asked.uid, asked.container, *why)]
        share = known.effective.containers[asked.container]
        before = self.store.lease(asked.uid, asked.container)
        # An init container that runs within this share comes without the slot of the container.
        slot = asked.slot or ("" if before is None else before.slot)
        lease = Lease(
            uid=asked.uid, container=asked.container, grant_id=known.grant_id, boot_id=self.gpus.boot_id, slot=slot
        )
        hand_over = m.HandOver(
            asked.uid, asked.container, known.grant_id, share, known.grant.suspension, known.grant.remote
        )
        if before == lease:
            return [hand_over]
        self.store.add_lease(lease)
        if known.is_client:
            return [m.Save(), hand_over]  # the node of the GPU reports the slice
        return [m.Save(), hand_over, start_checks.enforced_event(known, lease, share, self.gpus.inventory, self.node)]

    def _container_ended(self, ended: m.ContainerEnded, now: float) -> list[m.Command]:
        lease = self.store.lease(ended.uid, ended.container)
        known = None if lease is None else self.store.get(lease.grant_id)
        if lease is None or known is None or known.is_serving:
            return []  # of a server the kubelet knows nothing: `ServerEnded` tells of it
        self.store.end_lease(ended.uid, ended.container)
        told: list[m.Command] = [m.ClientEnded(ended.uid, ended.container)] if known.is_client else []
        return [m.Save(), *told, *self._release_if_ended(lease.grant_id, "its containers have ended", now)]

    def _release_if_ended(self, grant_id: str, reason: str, now: float) -> list[m.Command]:
        known = self.store.get(grant_id)
        if known is None or not known.releasing or self.store.is_running(grant_id):
            return []
        return self._finish_release(grant_id, known.grant.uid, reason, now)

    def _end_boot(self, now: float) -> list[m.Command]:
        """No container of the last boot runs. Its grants stay valid: the kubelet may start their containers again."""
        ended = self.store.end_all_leases()
        out = self.servers.end_boot(ended, now)
        for grant_id in ended:
            out += self._release_if_ended(grant_id, "the node rebooted", now)
        return out

    # --- time -------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> list[m.Command]:
        out = self._release_events(*self.released.due_for_repeat(now))
        for order in suspensions.retry_restores(self.store, self.node, self.gpus.by_uuid):
            if order.task is not None:
                out += [m.Save(), m.SuspendSlices(order.received, (order.task,))]
        out += self.resizes.due(now)
        for known, reason in self._gone_gpus.due(now):
            out += [m.Save(), *self._finish_release(known.grant_id, known.grant.uid, reason, now)]
        return out + self._evictions.due(now)

    # --- messages -----------------------------------------------------------------------------------------------

    def _release_events(self, *released: Released) -> list[m.Command]:
        return releases.events_for(released, self.node, self.gpus.boot_id)

    def _accepted(self, grant_id: str) -> m.Answer:
        return m.Answer(Accepted(ok=True, term=self.terms.newest, node=self.node, grant_id=grant_id))

    def _outdated(self, grant_id: str, term: int) -> m.Answer:
        return self._refused(grant_id, f"term {term} is over; this node follows term {self.terms.newest}")

    def _refused(self, grant_id: str, reason: str, *, dead: bool = False) -> m.Answer:
        return m.Answer(
            Accepted(ok=False, reason=reason, term=self.terms.newest, node=self.node, grant_id=grant_id, dead=dead)
        )
