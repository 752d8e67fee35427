"""The book: what each pod holds and what is free. Facts go in; changes that matter to a scheduler come out.

Rules kept here (the protocol's numbers):
- A grant is booked from the decision on (`hold`), and ends only by evidence (R4): its pod is seen at another
  resourceVersion unbound, which voids the Binding, or the node releases it (R6), or the node is deleted.
- A pod that is gone or has ended frees its CPU, memory and pod slot at once, its GPU shares only by `release`.
- A grant seen on a bound pod is true, whether or not it fits: `overbooked` shows overbooking, nothing hides it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from shared.book.claimants import Claimants
from shared.book.ledger import Ledger
from shared.book.others import Others
from shared.book.states import GrantState, PodState, grant_of, grant_state, is_read_alike, pod_state, state_like
from shared.contracts.facts import Fact, Gone, Put
from shared.model.claims import ResourceClaim
from shared.model.grant import Grant
from shared.model.kinds import Object
from shared.model.objects import Gang, Node, Pod, version
from shared.model.storage import CSIStorageCapacity
from shared.model.suspension import goes_to_host

READ_MOST = 1024
"""Kinds of pods of which one is remembered as read."""


class Change(msgspec.Struct, frozen=True):
    """What a fact meant. pending: the pod may be placed (or no longer: see `PodState.wants_place`). void: its hold
    ended unbound. bound: it was seen bound. amended: the annotated amounts of its grant changed, or cannot change any
    more as it was booked. ended: it is gone or terminal. beside: a bound pod has other labels or begins to end, which
    counts for the affinity and the spread of others. node, other: see `name`. other of Pod: a pod was resized by
    Kubernetes, and takes more or less of its node."""

    kind: Literal["pending", "void", "bound", "amended", "ended", "beside", "node", "other"]
    name: str
    """The pod's uid, the node's name, or a kind of objects."""
    grant_id: str = ""


class Book(Ledger):
    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, PodState] = {}
        self.uid_by_key: dict[str, str] = {}
        self.others = Others()
        """Objects of other kinds, by kind and then by namespace/name."""
        self.avoided: dict[str, set[str]] = {}
        """By the uid of a pods' controller: nodes whose kubelet rejected one of its pods a short while ago."""
        self._claimants = Claimants()
        self._read_last: dict[tuple[object, ...], PodState] = {}
        """By the pods' controller and their first container's limits: what was read of one. Others read alike."""

    # --- facts ------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> list[Change]:
        if isinstance(fact, Put):
            return self._put(fact.object)
        return self._gone(fact.object, fact.certain)

    def apply_snapshot(self, facts: Iterable[Fact]) -> list[Change]:
        """All objects. Those that the book knew and the snapshot lacks are gone."""
        changes: list[Change] = []
        seen: set[tuple[str, str]] = set()
        for fact in facts:
            seen.add(_identity(fact.object))
            changes += self.apply(fact)
        known: list[Object] = [s.pod for s in self.pods.values()]
        known += [s.object for s in self.nodes.values() if s.object is not None]
        known += [o for objects in self.others.values() for o in objects.values()]
        for obj in known:
            if _identity(obj) not in seen:
                changes += self.apply(Gone(object=obj, certain=False))
        # A claim of the snapshot may have changed a pod that is gone by the same snapshot.
        return [change for change in changes if change.kind != "pending" or change.name in self.pods]

    def _put(self, obj: Object) -> list[Change]:
        if isinstance(obj, Pod):
            return self._put_pod(obj)
        if isinstance(obj, Node):
            return self._put_node(obj)
        kind = type(obj).__name__
        known = self.others.put(kind, _path(obj), obj)
        if isinstance(obj, Gang) and isinstance(known, Gang) and _described(known) == _described(obj):
            return []  # its condition alone is another one: Kerf wrote it
        if isinstance(obj, CSIStorageCapacity) and isinstance(known, CSIStorageCapacity) and not obj.offers_more(known):
            return []  # one changes with each volume that is made
        return [Change("other", kind), *self._claim_changed(obj)]

    def _gone(self, obj: Object, certain: bool) -> list[Change]:
        if isinstance(obj, Pod):
            return self._drop_pod(obj, certain)
        if isinstance(obj, Node):
            return self._drop_node(obj.metadata.name)
        kind = type(obj).__name__
        self.others.drop(kind, _path(obj))
        return [] if isinstance(obj, CSIStorageCapacity) else [Change("other", kind), *self._claim_changed(obj)]

    # --- pods -------------------------------------------------------------------------------------------------

    def _put_pod(self, pod: Pod) -> list[Change]:
        uid = pod.metadata.uid
        old = self.pods.get(uid)
        if old is not None and version(pod.metadata) <= version(old.pod.metadata):
            return []
        changes: list[Change] = []
        if old is not None and pod.spec.node_name and _stands_otherwise(old.pod, pod):
            changes.append(Change("beside", uid))
        state = self._read(pod) if old is None or _reads_anew(old.pod, pod) else old
        if old is not None and state is not old:
            self._succeed(old, state)
            if state.charged and state.demand != old.demand:
                changes.append(Change("other", "Pod"))
        state.pod = pod
        self.pods[uid] = state
        self.uid_by_key[state.key] = uid
        if not pod.spec.node_name:
            state.excluded = ""  # at this version no Binding of the past can succeed any more
            held = self.grants.get(state.grant_id) if state.grant_id else None
            if old is not None and ((held is not None and held.phase == "holding") or state.charged):
                # The Binding named another resourceVersion: it can never succeed now (R3), so the hold is void (R4).
                changes.append(Change("void", uid, state.grant_id))
                self.unhold(uid)
            changes.append(Change("pending", uid))
            return changes
        self._claimants.drop(uid)
        if state.ended:
            return changes + self._end(state)
        changes += self._bind(state)
        if goes_to_host(state.suspension):
            self.park(state.grant_id)
        return changes

    def _read(self, pod: Pod) -> PodState:
        """A controller writes its pods alike, or in a few ways, and reading one costs as much as deciding its place."""
        if pod.spec.resource_claims:
            state = pod_state(pod, self.others.get(ResourceClaim.__name__, {}))
            self._claimants.put(state.uid, set(state.claims.values()))
            return state
        controller = next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
        like = (controller, *(tuple(c.resources.limits.items()) for c in pod.spec.containers[:1]))
        known = self._read_last.get(like)
        if known is not None and is_read_alike(known.pod, pod):
            return state_like(known, pod)
        if len(self._read_last) >= READ_MOST:
            self._read_last.clear()
        self._read_last[like] = pod_state(pod)
        return state_like(self._read_last[like], pod)

    def _succeed(self, old: PodState, state: PodState) -> None:
        """What is true of the pod beside what was read of it."""
        state.charged, state.grant_id, state.returned = old.charged, old.grant_id, old.returned
        state.seen_bound, state.excluded = old.seen_bound, old.excluded
        state.suspension = None if state.returned else state.suspension
        state.uses, state.network_milli = state.uses or old.uses, old.network_milli
        if old.charged:
            # The pod may need another amount now (a resize): take the old one back and charge the new.
            node = old.charged
            self._uncharge(old)
            self._charge(state, node)

    def _claim_changed(self, obj: Object) -> list[Change]:
        """Waiting pods with this claim may request something else now, or may be placed at last."""
        if not isinstance(obj, ResourceClaim):
            return []
        changes = []
        for uid in self._claimants.of(_path(obj)):
            old = self.pods[uid]
            state = self._read(old.pod)
            if (state.request, state.refusal) != (old.request, old.refusal):
                self._succeed(old, state)
                self.pods[uid] = state
                changes.append(Change("pending", uid))
        return changes

    def _bind(self, state: PodState) -> list[Change]:
        """The pod is seen on a node. Its annotation, not our decision, is the truth."""
        node = state.pod.spec.node_name
        grant = _living_grant(state)
        if state.excluded and grant is not None:
            # A Binding of the past, which its leader's successors know nothing of: its GPUs may be another's by now.
            state.returned, state.suspension, grant = grant.grant_id, None, None
        known = self.grants.get(state.grant_id) if state.grant_id else None
        if state.charged != node:
            self._uncharge(state)
            self._charge(state, node)
        if state.seen_bound:
            return [Change("amended", state.uid, state.grant_id)] if self._amended(known, grant) else []
        if known is not None and (grant is None or grant.grant_id != known.grant_id):
            # Bound by another scheduler, or by an older decision: Kerf's Binding at this resourceVersion can no longer
            # happen.
            self.release(known.grant_id)
            known = None
        if grant is not None:
            if known is None:
                self._book(grant_state(grant, state, node, "bound"))
                state.grant_id = grant.grant_id
            else:
                known.enter("bound")
        state.seen_bound = True
        return [Change("bound", state.uid, state.grant_id)]

    def _end(self, state: PodState) -> list[Change]:
        self._uncharge(state)
        grant = _living_grant(state)
        if grant is not None and grant.grant_id not in self.grants and not state.grant_id:
            # Ended before this book began. Whether its slice has been given back is for the node to say.
            left = grant_state(grant, state, state.pod.spec.node_name, "leaving")
            if left.node in self.nodes:
                self._book(left)
                state.grant_id = grant.grant_id
                return [Change("ended", state.uid, state.grant_id)]
        held = self.grants.get(state.grant_id) if state.grant_id else None
        if held is None:
            return [Change("ended", state.uid)]
        if held.phase == "leaving":
            return []
        held.enter("leaving")
        self.leaving[held.grant_id] = held
        return [Change("ended", state.uid, held.grant_id)]

    def _drop_pod(self, last: Pod, certain: bool) -> list[Change]:
        """Gone. Where its last moments were not seen, a hold may have become true in them, so that its capacity too
        comes back by the node alone."""
        # Its last state still counts (a grant it was bound with), and of that only an end is to be reported.
        changes = [change for change in self._put_pod(last) if change.kind in ("void", "ended")]
        state = self.pods.get(last.metadata.uid)
        if state is None:
            return changes
        held = self.grants.get(state.grant_id) if state.grant_id else None
        if certain and not last.spec.node_name and (held is not None or state.charged):
            changes.append(Change("void", state.uid, state.grant_id))
            self.unhold(state.uid)
        if not any(change.kind == "ended" for change in changes):
            changes += self._end(state) or [Change("ended", state.uid)]
        del self.pods[state.uid]
        self._claimants.drop(state.uid)
        if self.uid_by_key.get(state.key) == state.uid:
            del self.uid_by_key[state.key]
        return changes

    # --- holds and grants -------------------------------------------------------------------------------------

    def hold(self, uid: str, node: str, grant: Grant | None) -> None:
        """Books a decision. The pod must be known and unbound."""
        state = self.pods[uid]
        self._charge(state, node)
        if grant is not None:
            self._book(grant_state(grant, state, node, "holding"))
            state.grant_id = grant.grant_id

    def unhold(self, uid: str) -> None:
        """Removes a hold. Allowed only if it is certain that its Binding can never succeed (R4)."""
        state = self.pods[uid]
        self._uncharge(state)
        if state.grant_id:
            self.release(state.grant_id)
            state.grant_id = ""

    def book_leaving(self, state: GrantState) -> None:
        """A slice that runs on a node and whose pod is unknown: booked until released."""
        if state.grant_id not in self.grants:
            self._book(state)

    def release(self, grant_id: str) -> GrantState | None:
        """The capacity of a grant is back. Idempotent."""
        held = self._unbook(grant_id)
        state = None if held is None else self.pods.get(held.uid)
        if held is not None and state is not None and state.grant_id == grant_id:
            state.grant_id = ""
            if held.phase != "holding":
                state.returned, state.suspension = grant_id, None
        return held

    # --- nodes ------------------------------------------------------------------------------------------------

    def _put_node(self, obj: Node) -> list[Change]:
        node = self._node(obj.metadata.name)
        node.object = obj
        node.read_capacity()
        self._write_room(node)
        self._rebuild_gpus(node)
        return [Change("node", node.name)]

    def _drop_node(self, name: str) -> list[Change]:
        node = self.nodes.get(name)
        if node is None:
            return []
        node.object = None  # the inventory stays: where the node comes back its agent need not say it again
        node.agent_trouble = "the node is gone"
        node.read_capacity()
        # R6: with the node goes whatever was still to be given back there.
        for held in [h for h in self.leaving.values() if h.node == name]:
            self.release(held.grant_id)
        self._rebuild_gpus(node)
        self._write_room(node)
        self._forget_if_empty(node)
        return [Change("node", name)]

    # --- questions --------------------------------------------------------------------------------------------

    def digest(self) -> dict[str, tuple[str, str]]:
        """What is charged to which pod, for comparing two books (P6)."""
        rooms = {f"room/{uid}": (s.charged, repr(s.demand)) for uid, s in self.pods.items() if s.charged}
        return rooms | {f"grant/{g.grant_id}": (g.node, g.phase) for g in self.grants.values()}


def _stands_otherwise(before: Pod, after: Pod) -> bool:
    """Whether the pod counts otherwise for the affinity and the spread of others."""
    was, now = before.metadata, after.metadata
    return was.labels != now.labels or (was.deletion_timestamp is None) != (now.deletion_timestamp is None)


def _reads_anew(old: Pod, new: Pod) -> bool:
    """Whether what a PodState reads of a pod may have changed: of its status only the names of its claims and
    a resize."""
    return (
        old.spec.resource_claims != new.spec.resource_claims
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
        or not is_read_alike(old, new)
    )


def _living_grant(state: PodState) -> Grant | None:
    grant, _ = grant_of(state.pod)
    return None if grant is None or grant.grant_id == state.returned else grant


def _path(obj: Any) -> str:
    namespace = obj.metadata.namespace
    return f"{namespace}/{obj.metadata.name}" if namespace else str(obj.metadata.name)


def _described(gang: Gang) -> Gang:
    """Without its version, and what the scheduler itself has written to it."""
    meta = msgspec.structs.replace(gang.metadata, resource_version="")
    return msgspec.structs.replace(gang, metadata=meta, scheduled=None, generation=0)


def _identity(obj: Any) -> tuple[str, str]:
    return (type(obj).__name__, obj.metadata.uid if isinstance(obj, Pod) else _path(obj))
