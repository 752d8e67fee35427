"""Syncs: a new leader names the grants that it knows, and closes the earlier terms. Pure."""

from __future__ import annotations

from services.node_agent import messages as m
from services.node_agent import rehearsals, resizes, suspensions
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore
from services.node_agent.releases import Releases
from services.node_agent.state import Terms
from shared.contracts.node_commands import NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.grant import Grant


class Syncs:
    def __init__(
        self,
        node: str,
        terms: Terms,
        *,
        store: GrantStore,
        released: Releases,
        gpus: NodeGpus,
        resizing: resizes.Resizes,
    ) -> None:
        self._node, self._terms = node, terms
        self._store, self._released, self._gpus, self._resizing = store, released, gpus, resizing

    def is_void(self, grant: Grant) -> bool:
        """Whether this grant will never be handed over: it was released, or its term is closed and the grant is
        unknown."""
        return grant.grant_id in self._released or (
            grant.term < self._terms.closed and self._store.get(grant.grant_id) is None
        )

    def apply(self, sync: NodeSync) -> list[m.Command]:
        """Takes over the grants that a leader names, and voids those of earlier terms that it does not name."""
        if sync.node != self._node or sync.term < self._terms.newest:
            return [
                m.Answer(
                    NodeSyncAnswer(
                        node=self._node,
                        boot_id=self._gpus.boot_id,
                        term=self._terms.newest,
                        accepted=False,
                        number=sync.number,
                    )
                )
            ]
        if (sync.term, sync.number) < (self._terms.closed, self._terms.sync_number):
            return []  # a newer sync of the same leader was answered already
        for named in sync.grants:
            if self.is_void(named.grant):
                # An earlier sync closed its term, and placement was told so.
                self._released.add_tombstone(named.grant.grant_id)
        self._terms.newest = self._terms.closed = sync.term
        self._terms.sync_number = sync.number
        ids = {g.grant.grant_id for g in sync.grants}
        for unnamed in [
            k for k in self._store.known if k.grant_id not in ids and not self._store.is_running(k.grant_id)
        ]:
            if unnamed.order < (sync.term, sync.number):
                self._store.forget(unnamed.grant_id)
                self._released.add_tombstone(unnamed.grant_id)
        for unnamed in [k for k in self._store.known if k.grant_id not in ids and k.is_client and not k.releasing]:
            # It runs, and no leader will order its release: it takes nothing of this node, so it is not in the answer.
            if (sync.term, sync.number) > unnamed.order:
                self._store.mark_releasing(unnamed)
        tasks = tuple(task for named in sync.grants for task in self._take_over(named, sync.term))
        return [m.Save(), m.SuspendSlices(sync, tasks) if tasks else self.answer(sync)]

    def _take_over(self, received: NodeGrant, term: int) -> tuple[m.SuspendTask, ...]:
        """Stores a grant that a sync names; returns what its slices have to do."""
        known = self._store.get(received.grant.grant_id)
        if received.grant.grant_id in self._released or (known is not None and known.grant.uid != received.uid):
            return ()
        if known is not None and received.number and (term, received.number) < known.order:
            # A later order about it has overtaken the sync: others may have what it gave up by that.
            if known.unbound and not received.unbound:
                self._store.confirm_bound(known)
            return ()
        gpus = self._gpus.by_uuid
        if known is not None and resizes.refusal(self._store, received, self._node, gpus):
            received = resizes.as_it_was(known, received)
        order = suspensions.apply_order(self._store, received, self._node, gpus)
        self._resizing.promise_before_start(received)
        return () if order.task is None else (order.task,)

    def answer(self, sync: NodeSync) -> m.Answer:
        """What a leader is told of its sync."""
        ids = [g.grant.grant_id for g in sync.grants]
        dead = tuple(grant_id for grant_id in ids if grant_id in self._released)
        suspension = {
            grant_id: found for grant_id in ids if (found := suspensions.applied_to(self._store, grant_id)) is not None
        }
        return m.Answer(
            NodeSyncAnswer(
                node=self._node,
                boot_id=self._gpus.boot_id,
                term=self._terms.newest,
                accepted=True,
                number=sync.number,
                live=self._store.live(self._node),
                tombstones=dead,
                suspension=suspension,
                on_host=tuple(i for i in ids if (known := self._store.get(i)) is not None and known.on_host),
                resizes=True,
                amendments={
                    grant_id: amendment
                    for grant_id in ids
                    if (amendment := resizes.amendment_of(self._store, grant_id))
                },
                amended={
                    named.grant.grant_id: known.grant.grant
                    for named in sync.grants
                    if (known := self._store.get(named.grant.grant_id)) is not None
                    and resizes.differs(known.grant.grant, named.grant)
                },
                shrunk={
                    grant_id: promise
                    for grant_id in ids
                    if (promise := resizes.promise_of(self._store, grant_id)) is not None
                },
                cannot_checkpoint={
                    grant_id: why for grant_id in ids if (why := rehearsals.cannot_checkpoint(self._store, grant_id))
                },
                cannot_move={
                    grant_id: why for grant_id in ids if (why := rehearsals.cannot_move(self._store, grant_id))
                },
            )
        )
