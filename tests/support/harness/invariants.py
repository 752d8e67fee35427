"""What holds after every input of placement's core. Checked by the harness and by the simulation.

The transition tables (`PHASES`, `GRANT_PHASES`) are enforced by the code itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.placement import messages as m
from services.placement.core import Core
from shared.book.book import Book
from shared.book.ledger import is_off
from shared.book.states import NodeState, room_of

MAX_GRANTS_CHECKED = 256
"""Above it the arithmetic of GPUs is not checked after every input: a test with thousands of pods would never end."""


def check(core: Core, commands: Sequence[m.Command]) -> None:
    """Raises AssertionError that says what does not hold."""
    _commands_fit_the_phase(core, commands)
    _holds_are_booked(core)
    _reservations_are_bounded(core)
    leaving = {held.grant_id for held in core.book.grants.values() if held.phase == "leaving"}
    assert core.book.leaving.keys() == leaving, "the index of leaving grants is not what is booked"
    if len(core.book.grants) <= MAX_GRANTS_CHECKED:
        _placed_pods_are_indexed(core.book)
        _use_of_queues_adds_up(core)
        for node in core.book.nodes.values():
            _free_capacity_adds_up(core, node)
            _room_adds_up(node)
            _cpus_beside_gpus_add_up(node)


def _placed_pods_are_indexed(book: Book) -> None:
    placed = {uid: state for node in book.nodes.values() for uid, state in node.pods.items()}
    indexed = {state.uid: state for state in book.placed}
    assert indexed.keys() == placed.keys(), "the index by namespace is not what is placed"
    assert all(indexed[uid] is state for uid, state in placed.items()), "the index by namespace has another state"
    repel = {state.uid: state for state in book.exclusive}
    assert repel.keys() == {uid for uid, state in placed.items() if state.repels}, "the index of pods that repel others"
    assert all(placed[uid] is state for uid, state in repel.items()), "the index of pods that repel has another state"


def _commands_fit_the_phase(core: Core, commands: Sequence[m.Command]) -> None:
    for command in commands:
        assert command.cause == core.inputs.count, f"{type(command).__name__} does not name its cause"
        match command:
            case m.SendBinds():
                assert core.phase == "leading", f"Bindings are sent while {core.phase} (R5)"
                assert command.sequence > 0, "a Binding is sent before its decision is in the log (R2)"
            case m.Append():
                assert core.phase in ("readying", "leading"), f"a record is appended while {core.phase} (R5)"


def _holds_are_booked(core: Core) -> None:
    for uid, hold in core.holds.items():
        state = core.book.pods.get(uid)
        assert state is not None, f"{uid} has a hold and is not in the book (R4)"
        assert not state.pod.spec.node_name, f"{state.key} has a hold and is bound (R4)"
        assert state.charged == hold.decision.node, f"{state.key} holds a place on {state.charged}, not as decided"
        assert uid not in core.queue, f"{state.key} has a hold and is queued"
        if hold.decision.grant is not None:
            held = core.book.grants.get(hold.decision.grant.grant_id)
            assert held is not None, f"the grant of {state.key}'s hold is not booked (R4)"
            assert (held.uid, held.phase) == (uid, "holding"), f"{state.key}'s hold is booked as {held.phase}"


def _reservations_are_bounded(core: Core) -> None:
    """What is reserved for the head of the queue is booked while others are tried, and not afterwards."""
    kept, config = core.backfill.kept, core.config
    assert len(kept) <= config.max_reservations, f"capacity is reserved for {len(kept)} at once"
    for one in kept.values():
        assert not one.placeholders, f"what is reserved for {one.name} is booked between two inputs"
        assert not any(f"head/{uid}" in core.book.grants for uid in one.places), f"{one.name} has a grant of no pod"


def _room_adds_up(node: NodeState) -> None:
    demands = [state.demand for state in node.pods.values()]
    amounts = (
        sum(d.cpu_milli for d in demands),
        sum(d.memory_bytes for d in demands),
        sum(d.ephemeral_bytes for d in demands),
    )
    counted = (node.cpu_used, node.memory_used, node.ephemeral_used)
    assert counted == amounts, f"{node.name}: its pods take {amounts} of CPU, memory and storage, counted as {counted}"


def _use_of_queues_adds_up(core: Core) -> None:
    """In total: a pod stays in the queue of its first booking, whatever becomes of its label."""
    if core.fair.tree is None:
        return
    demands = [state.demand for node in core.book.nodes.values() for state in node.pods.values() if state.ours]
    taken = (sum(d.cpu_milli for d in demands), sum(d.memory_bytes for d in demands))
    used = [queue.used for queue in core.fair.tree.root.children]
    counted = (sum(u.cpu_milli for u in used), sum(u.memory_bytes for u in used))
    assert counted == taken, f"pods take {taken} of CPU and memory, counted in queues as {counted}"


def _cpus_beside_gpus_add_up(node: NodeState) -> None:
    numa = {} if node.inventory is None else {gpu.uuid: gpu.numa_node for gpu in node.inventory.gpus}
    taken = dict.fromkeys(numa.values(), 0)
    for held in node.grants.values():
        if (state := node.pods.get(held.uid)) is None:
            continue  # it has ended, and its CPUs are free
        shares = (share for container in held.grant.containers.values() for share in container.gpus)
        beside = {numa[share.uuid] for share in shares if share.uuid in numa}
        for place in beside:
            taken[place] += state.demand.cpu_milli // len(beside)
    if len(taken) > 1:
        counted = {place: node.cpus.taken_milli.get(place, 0) for place in taken}
        assert counted == taken, f"{node.name}: CPUs beside its GPUs are {taken} by its pods, and counted as {counted}"


def _free_capacity_adds_up(core: Core, node: NodeState) -> None:
    gpus = () if node.inventory is None else sorted(node.inventory.gpus, key=lambda gpu: gpu.index)
    fresh = {gpu.uuid: room_of(gpu, column, node) for column, gpu in enumerate(gpus)}
    for held in node.grants.values():
        assert core.book.grants.get(held.grant_id) is held, f"{held.grant_id} is on {node.name} and not in the book"
        for container in held.grant.containers.values():
            for share in container.gpus:
                if share.node == node.name and share.uuid in fresh and not is_off(held, share):
                    fresh[share.uuid].take(share.memory_mib, share.compute_milli, kept=held.phase == "reserved")
    arrays = core.book.arrays
    for room in node.gpus:
        expected = fresh[room.uuid]
        assert (room.free_mib, room.free_milli, room.containers, room.kept) == (
            expected.free_mib,
            expected.free_milli,
            expected.containers,
            expected.kept,
        ), f"GPU {room.uuid}: its free capacity is not what its grants leave"
        if room.usable:
            there = int(arrays.gpu_free_mib[node.row, room.column]), int(arrays.gpu_free_milli[node.row, room.column])
            assert there == (room.free_mib, room.free_milli), f"GPU {room.uuid}: the arrays differ from the book"
