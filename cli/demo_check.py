"""Double bookings as Kubernetes shows them: from the objects themselves, without asking placement's book."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cli.ask import ask
from shared.bus.port import Bus
from shared.contracts import queries, subjects
from shared.contracts.facts import SnapshotPage, SnapshotRequest
from shared.contracts.queries import InspectAnswer, InspectQuery
from shared.model import names
from shared.model.grant import decode_grant, sum_shares
from shared.model.objects import Pod
from shared.model.units import WHOLE_GPU_MILLI


async def pods(bus: Bus) -> AsyncIterator[Pod]:
    """Every pod, from a fresh snapshot of the watcher's."""
    page = await ask(bus, subjects.QUERY_SNAPSHOT, SnapshotRequest(fresh=True), SnapshotPage, timeout_s=30)
    for number in range(1, page.pages + 1):
        for fact in page.facts:
            if isinstance(fact.object, Pod):
                yield fact.object
        if number < page.pages:
            page = await ask(
                bus,
                subjects.snapshot_of(page.epoch),
                SnapshotRequest(snapshot=page.snapshot, page=number),
                SnapshotPage,
                timeout_s=30,
            )


async def double_bookings(bus: Bus) -> list[str]:
    """GPUs on which the grants of living bound pods exceed the memory or compute that their node reports."""
    sizes: dict[tuple[str, str], int] = {}
    for node in (await ask(bus, queries.INSPECT.subject, InspectQuery(), InspectAnswer)).nodes:
        sizes |= {(node.node, gpu.uuid): gpu.memory_mib for gpu in node.gpus}
    grants = []
    async for pod in pods(bus):
        text = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
        if text is not None and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            grants.append(decode_grant(text))
    taken = sum_shares(grants)
    return [
        f"{node}/{uuid}"
        for (node, uuid), (mib, milli) in taken.items()
        if mib > sizes.get((node, uuid), 0) or milli > WHOLE_GPU_MILLI
    ]
