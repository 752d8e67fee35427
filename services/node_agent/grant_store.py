"""The grants that this node knows, and the leases that are handed over under them. Pure.

A lease keeps its grant known until the lease ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

import msgspec

from services.node_agent.state import KnownGrant, Lease
from shared.contracts.node_commands import LiveSlice, NodeGrant
from shared.model.grant import ContainerGrant, Grant
from shared.model.suspension import Suspension, goes_to_host

Key = tuple[str, str]
"""The key of a lease: the pod's UID and the container's name."""


class GrantStore:
    def __init__(self, known: Iterable[KnownGrant], leases: Iterable[Lease]) -> None:
        self._known: dict[str, KnownGrant] = {}
        self._by_uid: dict[str, str] = {}
        for saved in known:
            self.put(saved)
        self._leases = {(lease.uid, lease.container): lease for lease in leases}
        self.under_way: Counter[str] = Counter()
        """By grant: how many suspensions and resumptions its slices have been told of, and have not answered yet."""

    # --- grants -----------------------------------------------------------------------------------------------

    @property
    def known(self) -> tuple[KnownGrant, ...]:
        return tuple(self._known.values())

    def get(self, grant_id: str) -> KnownGrant | None:
        return self._known.get(grant_id)

    def find_by_pod(self, uid: str) -> KnownGrant | None:
        return self._known.get(self._by_uid.get(uid, ""))

    def find_startable(self, uid: str) -> KnownGrant | None:
        """The grant by which containers of this pod may start here; None as long as the pod is not seen bound."""
        known = self.find_by_pod(uid)
        return None if known is None or known.unbound or known.is_serving else known

    def find_by_claim(
        self, claim: str, accepts: Callable[[KnownGrant], bool] = lambda _: True
    ) -> tuple[str, tuple[str, ...]] | None:
        """The UID of the pod whose grant has parts for this ResourceClaim, and the names of those parts.

        None if no such grant is known. Pods may use a claim one after the other: the newest grant counts, and one that
        is being released only if there is no other.
        """
        newest_first = self.known[::-1]
        for known in sorted(newest_first, key=lambda known: known.releasing):
            entries = tuple(name for name, part in known.grant.grant.containers.items() if part.claim == claim)
            if entries and not known.unbound and accepts(known):
                return known.grant.uid, entries
        return None

    def has_claims(self) -> bool:
        """Whether a known grant has parts for a ResourceClaim."""
        return any(part.claim for known in self._known.values() for part in known.grant.grant.containers.values())

    def init_share(self, uid: str) -> str:
        """The container that shares its slice with this pod's init containers, or "" if no grant is known.

        In a grant that names none it is the one with the largest share of its own.
        """
        known = self.find_by_pod(uid)
        if known is None:
            return ""
        own = {name: share for name, share in known.grant.grant.containers.items() if not share.claim}
        return known.grant.grant.init_share or max(own, key=lambda name: _size(own[name]), default="")

    def ordered_suspension(self, uid: str) -> Suspension | None:
        """The suspension that was ordered for this pod, or None."""
        known = self.find_by_pod(uid)
        return None if known is None else known.grant.suspension

    def startable(self) -> tuple[NodeGrant, ...]:
        """The grants that may be handed over."""
        return tuple(k.grant for k in self._known.values() if not k.releasing and not k.unbound)

    def grant_of(self, uid: str) -> Grant | None:
        """The grant of a pod that may be handed over."""
        return next((found.grant for found in self.startable() if found.uid == uid), None)

    def remember(self, received: NodeGrant) -> KnownGrant:
        """Stores a grant as it was received, and returns what is known of it.

        A grant that is being released stays so, and a pod that was seen bound stays bound. The applied suspension
        stands only as long as the same suspension is ordered, and a promise to use less only until the next amendment.
        """
        before = self._known.get(received.grant.grant_id)
        if before is None:
            known = KnownGrant(grant=received, on_host=goes_to_host(received.suspension))
        else:
            if received.unbound and not before.unbound:
                received = msgspec.structs.replace(received, unbound=False)
            amended = received.grant.amendment > before.grant.grant.amendment
            if not amended:
                # Amendments only rise. An equal one of other amounts comes from a restored etcd: the slices have those
                # of the first one, so the device gate goes on to count them.
                received = msgspec.structs.replace(received, grant=before.grant.grant)
            known = KnownGrant(
                grant=received,
                releasing=before.releasing,
                applied=before.applied if before.applied == received.suspension else None,
                in_force=before.in_force or before.effective if amended else before.in_force,
                shrunk=None if amended else before.shrunk,
                on_host=before.on_host or goes_to_host(received.suspension),
                rehearsed=before.rehearsed,
                cannot_checkpoint=before.cannot_checkpoint,
                cannot_move=before.cannot_move,
            )
        self.put(known)
        return known

    def put(self, known: KnownGrant) -> None:
        """Stores a grant. A pod is bound once: the grant that it was seen bound with is its grant, whatever else was
        decided for it."""
        self._known[known.grant_id] = known
        other = self._known.get(self._by_uid.get(known.grant.uid, ""))
        if other is None or not known.unbound or other.unbound:
            self._by_uid[known.grant.uid] = known.grant_id

    def confirm_bound(self, known: KnownGrant) -> None:
        """Notes that the grant's pod was seen bound."""
        self.put(msgspec.structs.replace(known, grant=msgspec.structs.replace(known.grant, unbound=False)))

    def note_order(self, known: KnownGrant, number: int) -> None:
        """Notes a newer order that changes nothing. An answer that named an earlier one would confirm nothing."""
        self.put(msgspec.structs.replace(known, grant=msgspec.structs.replace(known.grant, number=number)))

    def mark_releasing(self, known: KnownGrant) -> None:
        """Marks a grant as being released: no container may start by it any more."""
        self._known[known.grant_id] = msgspec.structs.replace(known, releasing=True)

    def forget(self, grant_id: str) -> KnownGrant | None:
        known = self._known.pop(grant_id, None)
        if known is not None and self._by_uid.get(known.grant.uid) == grant_id:
            del self._by_uid[known.grant.uid]
        return known

    # --- leases ------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    def leases_of(self, grant_id: str) -> list[Lease]:
        known = self._known.get(grant_id)
        if known is None:
            return []
        found = (self._leases.get((known.grant.uid, name)) for name in known.grant.grant.containers)
        return [lease for lease in found if lease is not None and lease.grant_id == grant_id]

    def away(self) -> list[tuple[str, str]]:
        """The containers, by pod UID and name, with slices on the host, or on their way there or back: they must not
        start. Those with devices of a ResourceClaim are left out, for the kubelet asks for these once for a pod."""
        return [
            (lease.uid, lease.container)
            for known in self._known.values()
            if known.on_host or goes_to_host(known.grant.suspension) or goes_to_host(known.applied)
            for lease in self.leases_of(known.grant_id)
            if not known.grant.grant.containers[lease.container].claim
        ]

    def is_running(self, grant_id: str) -> bool:
        return bool(self.leases_of(grant_id))

    def lease(self, uid: str, container: str) -> Lease | None:
        return self._leases.get((uid, container))

    def add_lease(self, lease: Lease) -> None:
        self._leases[lease.uid, lease.container] = lease

    def end_lease(self, uid: str, container: str) -> Lease | None:
        return self._leases.pop((uid, container), None)

    def end_all_leases(self) -> set[str]:
        """Ends all leases. Returns the ids of their grants."""
        ended = {lease.grant_id for lease in self._leases.values()}
        self._leases.clear()
        return ended

    def shares(self, without: Collection[Key] = ()) -> list[ContainerGrant]:
        """The shares that are handed over, less what their suspensions have freed."""
        return [self._share(lease, remaining=True) for key, lease in self._leases.items() if key not in without]

    def handed_over(self) -> list[tuple[str, ContainerGrant]]:
        """Each share that is handed over, as it was granted, with its pod's UID."""
        return [(lease.uid, self._share(lease)) for lease in self._leases.values()]

    def guaranteed_mib(self, node: str) -> dict[str, int]:
        """The memory of each GPU that slices are guaranteed: those that are handed over, and those that may be."""
        found: dict[str, int] = {}
        for known in self._known.values():
            for name in known.grant.grant.containers:
                share = known.remaining(name)
                if share is None or (known.releasing and (known.grant.uid, name) not in self._leases):
                    continue
                for gpu in share.gpus:
                    if gpu.node == node:
                        found[gpu.uuid] = found.get(gpu.uuid, 0) + gpu.memory_mib
        return found

    def live(self, node: str) -> tuple[LiveSlice, ...]:
        """The slices on this node's GPUs, also those of servers for other nodes. What containers here have of other
        nodes' GPUs is for those nodes to tell."""
        return tuple(
            self._live(lease, node, self._share(lease))
            for lease in self._leases.values()
            if not self._known_by(lease).is_client
        )

    def containers(self, node: str) -> tuple[LiveSlice, ...]:
        """The slices of containers that the kubelet of this node runs, wherever their GPUs are."""
        return tuple(
            self._live(lease, node, self._share(lease))
            for lease in self._leases.values()
            if not self._known_by(lease).is_serving
        )

    def in_force(self, node: str) -> tuple[LiveSlice, ...]:
        """As `live`, with what the slices have now: less than their grant while they grow."""
        found = []
        for lease in self._leases.values():
            known = self._known_by(lease)
            if not known.is_client:
                share = (known.in_force or known.effective).containers[lease.container]
                found.append(self._live(lease, node, share))
        return tuple(found)

    def _known_by(self, lease: Lease) -> KnownGrant:
        return self._known[lease.grant_id]

    def _share(self, lease: Lease, *, remaining: bool = False) -> ContainerGrant:
        # A lease keeps its grant known until it ends, so both look-ups succeed.
        known = self._known[lease.grant_id]
        share = known.remaining(lease.container) if remaining else known.share(lease.container)
        assert share is not None  # noqa: S101 - the invariant above
        return share

    def _live(self, lease: Lease, node: str, share: ContainerGrant) -> LiveSlice:
        received = self._known[lease.grant_id].grant
        gpus = {g.uuid: (g.memory_mib, g.compute_milli) for g in share.gpus if g.node == node}
        return LiveSlice(
            uid=lease.uid,
            namespace=received.namespace,
            name=received.name,
            container=lease.container,
            grant_id=lease.grant_id,
            strategy=share.strategy if self._known[lease.grant_id].is_client else share.limited_by,
            gpus=gpus,
            nics=received.grant.nics,
            mig=tuple(g for g in share.gpus if g.mig is not None and g.node == node),
            remote=received.remote,
        )


def _size(share: ContainerGrant) -> tuple[int, int, int]:
    return len(share.gpus), sum(g.memory_mib for g in share.gpus), sum(g.compute_milli for g in share.gpus)
