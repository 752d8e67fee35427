"""Answers to queries, from the leader's book as it stands. Nothing here changes anything."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from services.placement.core import Core
from services.placement.explain.steps import Steps
from services.placement.free_capacity import gpu_fit
from services.placement.queries import Answers, suspended
from services.placement.queries.memory_breakdown import MemoryBreakdown, memory_breakdown
from shared.book.states import NodeState
from shared.contracts.queries import (
    ENDED_GRANTS,
    GRANT,
    INSPECT,
    QUEUES,
    STATUS,
    EndedGrantsAnswer,
    EndedGrantsQuery,
    GrantAnswer,
    GrantQuery,
    InspectAnswer,
    InspectGpu,
    InspectNode,
    InspectPod,
    InspectQuery,
    QueuesAnswer,
    StatusAnswer,
    StatusQuery,
)
from shared.model.enrolment import asks
from shared.model.names import LABEL_ENROLLED

_WAITING_MOST = 10
_UIDS_MOST = 5000


def grant(core: Core, query: GrantQuery) -> GrantAnswer:
    if query.claim:
        # The last pod that used the claim may still hold its grant.
        of_claim = (
            [
                g
                for g in core.book.nodes[query.node].grants.values()
                if any(c.claim == query.claim for c in g.grant.containers.values())
            ]
            if query.node in core.book.nodes
            else []
        )
        held = min(of_claim, key=lambda g: g.phase != "bound", default=None)
    else:
        state = core.book.pods.get(query.uid)
        held = None if state is None else core.book.grants.get(state.grant_id)
    if held is None or held.phase != "bound":
        return GrantAnswer(
            error=f"no pod with {f'claim {query.claim}' if query.claim else f'uid {query.uid}'} is bound with a grant"
        )
    if query.node not in held.nodes:
        return GrantAnswer(error=f"the pod's grant is for node {' and '.join(held.nodes)}, not {query.node}")
    return GrantAnswer(found=core.nodes.node_grant(held, query.node))


def ended_grants(core: Core, query: EndedGrantsQuery) -> EndedGrantsAnswer:
    return EndedGrantsAnswer(grant_ids=tuple(id_ for id_ in query.grant_ids if id_ not in core.book.grants))


def inspect(core: Core, query: InspectQuery) -> Steps[InspectAnswer]:
    nodes = core.book.nodes
    if query.node and query.node not in nodes:
        return InspectAnswer(error=f"there is no node {query.node}")
    names = sorted(
        name
        for name, node in nodes.items()
        if node.gpus and (not query.node or name == query.node) and (not query.gpu or _has_gpu(node, query.gpu))
    )
    if query.gpu and not names:
        return InspectAnswer(error=f"there is no GPU {query.gpu}")
    if query.node and not names:
        names = [query.node]
    found, cursor = [], core.book.arrays.cursor
    for name in names:
        if name in nodes:  # it may have left between two steps
            found.append(_inspect_node(core, nodes[name]))
        yield
    return InspectAnswer(nodes=tuple(found), changed=core.book.arrays.cursor != cursor)


def _has_gpu(node: NodeState, uuid: str) -> bool:
    return any(room.uuid == uuid for room in node.gpus)


def _inspect_node(core: Core, node: NodeState) -> InspectNode:
    address, ready = "", node.object is not None
    if node.object is not None:
        address = next((a.address for a in node.object.status.addresses if a.type == "InternalIP"), "")
        ready = next((c.status == "True" for c in node.object.status.conditions if c.type == "Ready"), True)
    reported = {} if node.inventory is None else {g.uuid: g for g in node.inventory.gpus}
    on: dict[str, dict[str, InspectPod]] = {}
    containers: dict[str, int] = {}
    for held in node.grants.values():
        for name, container in held.grant.containers.items():
            for share in container.gpus:
                if share.node != node.name:
                    continue
                containers[share.uuid] = containers.get(share.uuid, 0) + (held.phase != "reserved")
                pods = on.setdefault(share.uuid, {})
                known = pods.get(held.grant_id)
                mib, milli, names = (known.memory_mib, known.compute_milli, known.containers) if known else (0, 0, ())
                max_mib = (known.memory_limit_mib or mib) if known else 0
                max_milli = (known.compute_limit_milli or milli) if known else 0
                max_mib += share.memory_limit_mib or share.memory_mib
                max_milli += share.compute_limit_milli or share.compute_milli
                pods[held.grant_id] = InspectPod(
                    namespace=held.namespace,
                    name=held.name,
                    state=held.phase,
                    memory_mib=mib + share.memory_mib,
                    compute_milli=milli + share.compute_milli,
                    containers=(*names, name),
                    suspension=(action := "" if held.suspension is None else held.suspension.action),
                    parked=action,
                    memory_limit_mib=max_mib if max_mib > mib + share.memory_mib else 0,
                    compute_limit_milli=max_milli if max_milli > milli + share.compute_milli else 0,
                )
    gpus, memory = [], memory_breakdown(node, core.suspension.returns)
    for room in node.gpus:
        pods, gpu = on.get(room.uuid, {}), reported.get(room.uuid)
        parts = memory.get(room.uuid, MemoryBreakdown())
        has = [pod for pod in pods.values() if pod.state != "reserved"]
        gpus.append(
            InspectGpu(
                uuid=room.uuid,
                index=room.index,
                model=room.model,
                state="healthy" if gpu is None else gpu.state,
                memory_mib=room.total_mib,
                allocated_memory_mib=sum(p.memory_mib for p in has),
                allocated_compute_milli=sum(p.compute_milli for p in has),
                containers=containers.get(room.uuid, 0),
                pods=tuple(pods.values()),
                reason="" if gpu is None else gpu.reason,
                foreign_mib=0 if gpu is None else gpu.foreign_mib,
                to_device_mb_s=0 if gpu is None else gpu.to_device_mb_s,
                from_device_mb_s=0 if gpu is None else gpu.from_device_mb_s,
                parked_mib=parts.suspended_mib,
                **msgspec.structs.asdict(parts),
            )
        )
    inventory = node.inventory
    return InspectNode(
        node=node.name,
        address=address,
        ready=ready,
        synced=core.nodes.is_synced(node.name),
        driver_version="" if inventory is None else inventory.driver_version,
        cuda_version="" if inventory is None else inventory.cuda_version,
        simulated=inventory is not None and inventory.simulated,
        gpus=tuple(gpus),
    )


def queues(core: Core) -> QueuesAnswer:
    fair = core.fair
    return QueuesAnswer(queues=tuple(fair.standing(core.queue.waiting_by_queue())), invalid=fair.problem)


def status(core: Core, query: StatusQuery, *, leader: bool, now: float = 0.0, wall: float = 0.0) -> StatusAnswer:
    book, arrays = core.book, core.book.arrays
    present = arrays.there
    sums = core.audit.sums(lambda: {name for name in book.nodes if not core.nodes.is_synced(name)})
    enrolled = [n for n in book.nodes.values() if n.object is not None and _must_have_agent(n)]
    # By first sight, the order of the dict: the queue's own order is by priority, and sorting it costs the leader.
    waiting = (uid for uid in core.scheduler.first_seen if uid in core.queue)
    oldest = tuple(itertools.islice(waiting, max(1, min(query.uids, _UIDS_MOST))))
    timings = sorted(core.scheduler.decide_us)
    shown = [
        core.explainer.why(book.pods[uid], max_nodes=0) for uid in core.queue.oldest(min(query.waiting, _WAITING_MOST))
    ]
    pods_suspended, most_suspended = suspended.pods(core, query.suspended, wall)
    on_host_mib, host_mib = suspended.on_hosts(core)
    return StatusAnswer(
        holder=core.holder,
        leader=leader,
        term=core.term,
        nodes=sum(1 for n in book.nodes.values() if n.object is not None),
        gpus=int(present.sum()),
        gpu_milli_total=int(present.sum()) * 1000,
        gpu_milli_allocated=sums.compute_milli,
        gpu_memory_mib_total=int(arrays.gpu_total_mib[present].sum()),
        gpu_memory_mib_allocated=sums.memory_mib,
        pods_bound=sums.pods_bound,
        pods_holding=len(core.holds),
        pods_waiting=len(core.queue),
        pods_gated=sums.pods_gated,
        pods_leaving=len(book.leaving),
        decisions=core.stats.decisions,
        rejections=core.stats.rejections,
        decide_us_p50=timings[len(timings) // 2] if timings else 0.0,
        decide_us_p99=timings[len(timings) * 99 // 100] if timings else 0.0,
        fragmentation_milli=fragmentation_milli(core),
        double_bookings=len(sums.overbooked),
        waiting=tuple(shown),
        synced_nodes=core.nodes.synced_count,
        agents=len(enrolled),
        agents_ready=sum(1 for n in enrolled if core.nodes.is_synced(n.name) and not n.agent_trouble),
        oldest_wait_s=core.scheduler.waited_ms(oldest[0], now) / 1000 if oldest else 0.0,
        waiting_uids=oldest[: query.uids],
        pods_suspended=pods_suspended,
        suspended=most_suspended,
        on_host_mib=on_host_mib,
        host_mib=host_mib,
    )


def _must_have_agent(node: NodeState) -> bool:
    labels = node.object.metadata.labels if node.object is not None else {}
    return node.inventory is not None or labels.get(LABEL_ENROLLED) == "true" or asks(labels)


def fragmentation_milli(core: Core) -> int:
    """GPU milli that is free and that no request shape seen lately could take: too little left, of one thing or the
    other."""
    arrays = core.book.arrays
    rows = np.arange(len(core.book.row_names), dtype=np.int64)
    if rows.size == 0:
        return 0
    useful = np.zeros((rows.size, arrays.columns), np.bool_)
    for request in core.engine.known_requests():
        for ask in request.asks.values():
            useful |= gpu_fit(ask, arrays, rows)
    free = np.maximum(arrays.gpu_free_milli[rows], 0)
    return int(free[~useful & (arrays.gpu_total_mib[rows] > 0)].sum())


ANSWERS: Answers = {
    INSPECT.name: lambda core, query, _: inspect(core, query),
    GRANT.name: lambda core, query, _: grant(core, query),
    ENDED_GRANTS.name: lambda core, query, _: ended_grants(core, query),
    QUEUES.name: lambda core, _, __: queues(core),
    STATUS.name: lambda core, query, at: status(core, query, leader=True, now=at.now, wall=at.wall),
}
