"""Charges and frees the capacity of nodes and GPUs. `book.Book` decides what a fact means."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from shared.book.arrays import Arrays
from shared.book.cpus import CpusBeside
from shared.book.pods_alike import PodsAlike
from shared.book.shares import GpuRoom
from shared.book.states import GrantState, NodeState, PodState, grant_state, room_of
from shared.model.gpu import Inventory
from shared.model.grant import GpuShare, Grant, sum_shares
from shared.model.mig import instance_mask
from shared.model.moves import moved_gpus
from shared.model.resize import same_slices
from shared.model.suspension import Suspension, goes_to_host, left_of
from shared.model.units import WHOLE_GPU_MILLI

_ENCODER = msgspec.json.Encoder(order="deterministic")


class Witness(Protocol):
    """Told of all that is charged and given back, in the same step."""

    def charged(self, state: PodState) -> None: ...
    def uncharged(self, state: PodState) -> None: ...
    def booked(self, held: GrantState) -> None: ...
    def unbooked(self, held: GrantState) -> None: ...


class Ledger:
    """Every amount is kept twice: on `NodeState`s for explanations, and in `arrays` for queries about all nodes at
    once."""

    def __init__(self) -> None:
        self.arrays = Arrays()
        self.nodes: dict[str, NodeState] = {}
        self.row_names: list[str] = []
        """Node name by row; empty for a row without a node."""
        self.grants: dict[str, GrantState] = {}
        self.leaving: dict[str, GrantState] = {}
        """Of these, those whose nodes have not given their capacity back."""
        self.parked: set[str] = set()
        """Of these, the ids of those whose GPU memory is on the host, or may be (`GrantState.parked`)."""
        self.remote: dict[str, GrantState] = {}
        """Of these, the grants on GPUs of another node than their pod's."""
        self.placed = PodsAlike(lambda state: state.pod.metadata.namespace, _labels)
        """The pods on nodes. Those of a namespace with the same labels are alike."""
        self.exclusive = PodsAlike(lambda state: state.repels_in, _repelling)
        """Those of them with required anti-affinity, which keep others away, by the namespace in which they do; empty
        for those with terms that name namespaces. Those with the same labels and terms are alike."""
        self.witness: Witness | None = None
        self._free_rows: list[int] = []
        self._stamp = 0

    @property
    def stamp(self) -> int:
        """Another number whenever a Node object, an inventory or an agent's state has changed."""
        return self._stamp

    @contextmanager
    def unwitnessed(self) -> Iterator[None]:
        """What is charged and given back within is told to no witness: it is given back before anyone looks."""
        witness, self.witness = self.witness, None
        try:
            yield
        finally:
            self.witness = witness

    # --- grants and rooms -------------------------------------------------------------------------------------

    def _book(self, held: GrantState) -> None:
        self._unbook(held.grant_id)  # a pod's end may be reported twice, and its grant is freed once
        self.grants[held.grant_id] = held
        if held.phase == "leaving":
            self.leaving[held.grant_id] = held
        if held.parked:
            self.parked.add(held.grant_id)
        for name in _nodes_of(held.grant):
            node = self._node(name)
            node.grants[held.grant_id] = held
            if (state := node.pods.get(held.uid)) is not None:
                node.cpus.put(held.grant, state.demand)
        if held.client:
            self._node(held.client).clients[held.grant_id] = held
            self.remote[held.grant_id] = held
        self._gpu_charge(held, +1)
        if self.witness is not None:
            self.witness.booked(held)

    def suspend(self, grant_id: str, suspension: Suspension | None) -> None:
        """From now on it takes what is left of it so; None: all that it was given."""
        held = self._unbook(grant_id)
        if held is None:
            return
        given = held.given
        if suspension is None:
            self._book(msgspec.structs.replace(held, grant=given, whole=None, suspension=None))
        else:
            left, parked = left_of(given, suspension), held.parked or goes_to_host(suspension)
            self._book(msgspec.structs.replace(held, grant=left, whole=given, suspension=suspension, parked=parked))

    def move(self, grant_id: str, grant: Grant) -> None:
        """From now on it takes all of this grant, which is its own on other GPUs. On a fork: what is booked of a pod
        moves by its annotation (`_amended`)."""
        held = self._unbook(grant_id)
        if held is not None:
            self._book(msgspec.structs.replace(held, grant=grant, whole=None, suspension=None))

    def park(self, grant_id: str, *, parked: bool = True) -> None:
        """From now on its GPU memory counts as on the host, or no longer."""
        held = self.grants.get(grant_id)
        if held is not None and held.parked != parked:
            self._unbook(grant_id)
            self._book(msgspec.structs.replace(held, parked=parked))

    def grow(self, grant_id: str, grant: Grant) -> None:
        """From now on it takes these larger amounts, because its annotation may come to have them at any time."""
        held = self._unbook(grant_id)
        if held is not None:
            self._book(msgspec.structs.replace(held, grant=grant, noted=held.given))

    def _amended(self, known: GrantState | None, grant: Grant | None) -> bool:
        """A pod is seen at another version, with this grant. An amendment changes the grant's amounts, and no other
        edit changes anything. A growth that was booked for the version before has landed, or never will (R3, R4)."""
        if known is None or grant is None or grant.grant_id != known.grant_id or known.phase != "bound":
            return False
        before = known.given
        newer = grant.amendment > before.amendment and self._can_be(known, grant)
        if not newer and known.noted is None:
            return False
        if newer:
            before = msgspec.structs.replace(before, containers=grant.containers, amendment=grant.amendment)
        self._amend(known, before)
        return True

    def _can_be(self, known: GrantState, grant: Grant) -> bool:
        """Whether this may be an amendment of it. Whoever can write annotations can write anything, and what a node
        was told to enforce must stay booked."""
        if not same_slices(grant, known.given) and not self._can_move(known.given, grant):
            return False
        for share in (share for part in grant.containers.values() for share in part.gpus):
            node = self.nodes.get(share.node)
            room = None if node is None else node.by_uuid.get(share.uuid)
            if share.memory_mib < 0 or not 0 <= share.compute_milli <= WHOLE_GPU_MILLI:
                return False
            if room is not None and share.memory_mib > room.total_mib:
                return False
        return True

    def _can_move(self, given: Grant, grant: Grant) -> bool:
        """Whether these are its slices on other GPUs of the same model of its node."""
        onto = moved_gpus(given, grant) if given.any_gpu else {}
        rooms = {} if not onto else self.nodes[next(iter(_nodes_of(given)))].by_uuid
        return bool(onto) and all(
            had not in rooms or has not in rooms or rooms[had].model == rooms[has].model for had, has in onto.items()
        )

    def _amend(self, held: GrantState, grant: Grant) -> None:
        """Its annotation has this grant now, and nothing else can be written at the version before."""
        self._unbook(held.grant_id)
        taken = grant if held.suspension is None else left_of(grant, held.suspension)
        whole = None if held.suspension is None else grant
        self._book(msgspec.structs.replace(held, grant=taken, whole=whole, noted=None, shrink=None))

    def _gpu_charge(self, held: GrantState, sign: int) -> None:
        kept = sign if held.phase == "reserved" else 0
        for container in held.grant.containers.values():
            for share in container.gpus:
                node = self.nodes[share.node]
                room = node.by_uuid.get(share.uuid)
                if room is None:
                    continue  # not there (yet): `_rebuild_gpus` counts the node's grants when its inventory comes
                room.free_mib -= sign * share.memory_mib
                room.free_milli -= sign * share.compute_milli
                if not is_off(held, share):
                    room.containers += sign
                room.kept += kept
                if room.mig is not None:
                    room.mig.granted = self._mig_granted(node, room)
                self.arrays.write_gpu(node.row, room)
                self.arrays.note(node.row)

    def reserve(self, placeholder: PodState, node: str, grant: Grant | None) -> None:
        """Reserves a place for a pod that may not have it yet. `placeholder` is its placeholder on the node, and not a
        pod of the book. Capacity still in use there counts twice until it is released, so no other pod can get it. What
        is reserved there already is booked once."""
        if (known := self._node(node).pods.get(placeholder.uid)) is not None:
            self.unreserve(known)
        self._charge(placeholder, node)
        if grant is not None:
            self._book(grant_state(grant, placeholder, node, "reserved"))
            placeholder.grant_id = grant.grant_id

    @contextmanager
    def without_room(self, placeholders: Iterable[PodState]) -> Iterator[None]:
        """Within, these have the GPUs that are reserved for them, and no CPU, memory and slot of their nodes."""
        taken_off = [(placeholder, placeholder.charged) for placeholder in placeholders]
        for placeholder, _ in taken_off:
            self._uncharge(placeholder)
        try:
            yield
        finally:
            for placeholder, node in taken_off:
                self._charge(placeholder, node)

    def unreserve(self, placeholder: PodState) -> None:
        self._uncharge(placeholder)
        if placeholder.grant_id:
            self._unbook(placeholder.grant_id)
            placeholder.grant_id = ""

    def _charge(self, state: PodState, node_name: str) -> None:
        node = self._node(node_name)
        node.pods[state.uid] = state
        node.add_room(state.demand, +1)
        if (held := node.grants.get(state.grant_id)) is not None:
            node.cpus.put(held.grant, state.demand)
        state.charged = node_name
        self._index(state)
        self._write_room(node)
        if self.witness is not None:
            self.witness.charged(state)

    def _uncharge(self, state: PodState) -> None:
        if not state.charged:
            return
        node = self.nodes[state.charged]
        node.pods.pop(state.uid, None)
        node.add_room(state.demand, -1)
        node.cpus.drop(state.grant_id)
        state.charged = ""
        self._unindex(state)
        self._write_room(node)
        self._forget_if_empty(node)
        if self.witness is not None:
            self.witness.uncharged(state)

    def _index(self, state: PodState) -> None:
        self.placed.put(state)
        if state.repels:
            self.exclusive.put(state)

    def _unindex(self, state: PodState) -> None:
        self.placed.drop(state)
        if state.repels:
            self.exclusive.drop(state)

    def _unbook(self, grant_id: str) -> GrantState | None:
        held = self.grants.pop(grant_id, None)
        if held is None:
            return None
        self.parked.discard(grant_id)
        self.leaving.pop(grant_id, None)
        nodes = [self.nodes[name] for name in _nodes_of(held.grant)]
        if self.remote.pop(grant_id, None) is not None:
            client = self.nodes[held.client]
            client.clients.pop(grant_id, None)
            self._forget_if_empty(client)
        for node in nodes:
            node.grants.pop(grant_id, None)
            node.cpus.drop(grant_id)
        self._gpu_charge(held, -1)
        for node in nodes:
            self._forget_if_empty(node)
        if self.witness is not None:
            self.witness.unbooked(held)
        return held

    # --- nodes ------------------------------------------------------------------------------------------------

    def put_inventory(self, inventory: Inventory) -> None:
        """The agent's inventory. An older generation of the same boot and checkpoint changes nothing."""
        node = self._node(inventory.node)
        old = node.inventory
        if old is not None and old.era == inventory.era and old.generation > inventory.generation:
            return
        node.inventory = inventory
        self._rebuild_gpus(node)

    def set_agent_trouble(self, name: str, trouble: str) -> None:
        """Empty: the node's GPUs may be given. Else why not."""
        node = self._node(name)
        if node.agent_trouble != trouble:
            node.agent_trouble = trouble
            self._rebuild_gpus(node)

    def retire_agent(self, name: str) -> None:
        """The agent left for good: its inventory is void."""
        node = self.nodes.get(name)
        if node is not None and node.inventory is not None:
            node.inventory = None
            self._rebuild_gpus(node)
            self._forget_if_empty(node)

    def _node(self, name: str) -> NodeState:
        node = self.nodes.get(name)
        if node is None:
            row = self._free_rows.pop() if self._free_rows else len(self.row_names)
            if row == len(self.row_names):
                self.row_names.append(name)
                self.arrays.ensure_rows(row + 1)
            self.row_names[row] = name
            node = self.nodes[name] = NodeState(name, row)
        return node

    def _forget_if_empty(self, node: NodeState) -> None:
        if (
            node.object is None
            and node.inventory is None
            and not node.pods
            and not node.grants
            and not node.clients
            and self.nodes.pop(node.name, None) is not None
        ):
            self.row_names[node.row] = ""
            self.arrays.clear(node.row)
            self._free_rows.append(node.row)

    def _write_room(self, node: NodeState) -> None:
        arrays, row = self.arrays, node.row
        if node.object is None:
            arrays.pods_free[row] = -1
            arrays.cpu_total[row] = arrays.memory_total[row] = 0
        else:
            arrays.cpu_free[row] = node.cpu_total - node.cpu_used
            arrays.memory_free[row] = node.memory_total - node.memory_used
            arrays.ephemeral_free[row] = node.ephemeral_total - node.ephemeral_used
            arrays.pods_free[row] = node.pods_total - len(node.pods)
            arrays.cpu_total[row] = node.cpu_total
            arrays.memory_total[row] = node.memory_total
        arrays.note(row)

    def _rebuild_gpus(self, node: NodeState) -> None:
        gpus = () if node.inventory is None else node.inventory.gpus
        node.gpus = []
        for column, gpu in enumerate(sorted(gpus, key=lambda g: g.index)):
            node.gpus.append(room_of(gpu, column, node))
        node.by_uuid = {room.uuid: room for room in node.gpus}
        node.cpus = CpusBeside(node.inventory)
        for held in node.grants.values():
            if (state := node.pods.get(held.uid)) is not None:
                node.cpus.put(held.grant, state.demand)
            for container in held.grant.containers.values():
                for share in container.gpus:
                    room = node.by_uuid.get(share.uuid) if share.node == node.name else None
                    if room is not None and not is_off(held, share):
                        room.take(share.memory_mib, share.compute_milli, kept=held.phase == "reserved")
        for room in node.gpus:
            if room.mig is not None:
                room.mig.granted = self._mig_granted(node, room)
        self._stamp += 1
        node.stamp = self._stamp
        self.arrays.stamp[node.row] = node.stamp
        if node.inventory is None:
            self.arrays.inventories.pop(node.row, None)
        else:
            self.arrays.inventories[node.row] = node.inventory
        self.arrays.write_gpus(node.row, node.gpus)
        self.arrays.classify(node.row, sorted(gpus, key=lambda g: g.index))

    @staticmethod
    def _mig_granted(node: NodeState, room: GpuRoom) -> int:
        """Recomputed from all its grants: two that overlap must not free each other's slices."""
        granted = 0
        for taken in _masks(node, room):
            granted |= taken
        return granted

    def overbooked(self, unsynced: Container[str] = ()) -> list[str]:
        """GPUs on which more is booked than there is (P1), or MIG instances that overlap, as node/uuid. Memory of
        foreign processes is not counted. `unsynced`: nodes that have not yet said which grants they released; there
        a pod that has ended may be booked beside the one that got its GPU since."""
        counted = (
            held
            for held in self.grants.values()
            if held.phase != "reserved" and not (held.phase == "leaving" and held.node in unsynced)
        )
        taken = sum_shares(self._taken(held) for held in counted)
        return sorted(
            f"{node.name}/{room.uuid}"
            for node in self.nodes.values()
            for room in node.gpus
            if (used := taken.get((node.name, room.uuid)))
            and (used[0] > room.total_mib or used[1] > WHOLE_GPU_MILLI or _overlap(node, room))
        )

    def _taken(self, held: GrantState) -> Grant:
        """The present grant, for a growing pod by its annotation; for a suspended pod on a node that has not synced
        yet, what it was suspended to."""
        if held.noted is not None:
            return held.noted
        node = self.nodes.get(held.node)
        state = None if node is None or not node.agent_trouble else node.pods.get(held.uid)
        return held.grant if state is None or state.suspension is None else left_of(held.given, state.suspension)


def _masks(node: NodeState, room: GpuRoom) -> list[int]:
    """What each of the grants on a MIG GPU takes of its slices."""
    if room.mig is None:
        return []
    return [
        instance_mask(room.mig.geometry, share.mig)
        for held in node.grants.values()
        for container in held.grant.containers.values()
        for share in container.gpus
        if share.uuid == room.uuid and share.node == node.name and share.mig is not None
    ]


def _overlap(node: NodeState, room: GpuRoom) -> bool:
    masks = _masks(node, room)
    union = 0
    for mask in masks:
        union |= mask
    return sum(mask.bit_count() for mask in masks) != union.bit_count()


def _nodes_of(grant: Grant) -> set[str]:
    return {share.node for container in grant.containers.values() for share in container.gpus}


def is_off(held: GrantState, share: GpuShare) -> bool:
    """Whether all that a checkpointed pod had of a GPU is on the host: the GPU is idle but for others. A GPU can only
    be given as a whole when it is idle."""
    gone = goes_to_host(held.suspension)
    return gone and share.mig is None and not share.memory_mib and not share.compute_milli


def _labels(state: PodState) -> frozenset[tuple[str, str]]:
    return frozenset(state.pod.metadata.labels.items())


def _repelling(state: PodState) -> tuple[str, frozenset[tuple[str, str]], bytes]:
    """Terms are about the pod's own namespace where they name none, and may take values of its own labels."""
    return state.pod.metadata.namespace, _labels(state), _ENCODER.encode(state.pod.spec.affinity)
